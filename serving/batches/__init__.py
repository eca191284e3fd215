"""Batches: files with a request per line, which are answered in the background.

This package does not use HTTP.
"""
