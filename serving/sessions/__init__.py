"""Runs on this replica: their admission, their resources until their end, and the lookup of repeated
requests.
"""
