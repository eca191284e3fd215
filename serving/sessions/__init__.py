"""Runs on this replica: admission, resources until their end, and lookup of repeated requests."""
