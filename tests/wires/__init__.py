"""Loopback servers that speak the providers' protocols over HTTP, with the faults that a test sets. `server` is the
HTTP part and knows no provider. `openai`, `anthropic` and `gemini` each know one provider's bytes.
"""
