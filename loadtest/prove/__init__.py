"""Proofs of what the store promises: real router processes, real databases, and what goes wrong on purpose."""
