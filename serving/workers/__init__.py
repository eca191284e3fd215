"""Implementations of `conductor.model.worker.Worker`, with one module for each API.

`anthropic` and `gemini` use the provider's official SDK; `openai` and `openai_responses` call OpenAI-compatible servers
directly. `vllm` calls an engine replica in this cluster, `scripted` returns fixed answers, `plugin` loads
custom workers, and `programs` has workers that are programs instead of models.

This package imports nothing, so that only the SDKs of configured workers are loaded.
"""
