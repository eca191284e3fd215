"""Redaction of texts before they are stored, traced or logged: secrets always, personal data if a policy says
so.
"""
