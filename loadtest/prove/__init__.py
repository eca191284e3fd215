"""Proofs that the store keeps its promises, with real router processes, real databases and injected
faults.
"""
