"""Data types for calling a model: messages, calls, replies, usage and prices."""
