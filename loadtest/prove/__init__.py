"""Proofs of the store's promises: real router processes, real databases, injected faults."""
