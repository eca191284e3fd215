"""Batches: files of requests that run line by line in the background. Independent of HTTP."""
