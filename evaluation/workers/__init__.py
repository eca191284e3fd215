"""Workers for evaluation (`kind: python`): replayed models and programs. Each says what it is in `provenance`."""
