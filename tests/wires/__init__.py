"""Loopback servers that speak the providers' real wires over real HTTP, as well or as badly as a test asks.

`server` is the HTTP part and knows no provider; `openai`, `anthropic` and `gemini` each know one provider's
bytes.
"""
