"""Dispatch of calls to workers: order, queues, retries, hedges and fallbacks."""
