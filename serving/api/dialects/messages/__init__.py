"""Anthropic's Messages as a dialect."""
