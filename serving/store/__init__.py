"""Storage of runs: records, events, suspended runs, conversations and feedback."""
