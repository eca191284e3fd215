"""Redaction of texts before they are stored, traced or logged.

Secrets are always redacted. Personal data is redacted if the policy of the team or key requires it.
"""
