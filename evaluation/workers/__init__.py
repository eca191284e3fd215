"""Workers for evaluation (`kind: python`): replayed models and programs, as `provenance` says."""
