"""Workers for evaluation (`kind: python`): replayed models and programs. Their `provenance` says which."""
