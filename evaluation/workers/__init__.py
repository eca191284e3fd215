"""Workers for evaluation (`kind: python`): replayed models and programs. Their `provenance` tells them
apart.
"""
