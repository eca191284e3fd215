"""Workers (`conductor.model.worker.Worker`), one module per API.

`anthropic` and `gemini` use the provider's official SDK; `openai` and `openai_responses` call OpenAI-compatible servers
directly. `vllm` calls a replica in this cluster, `scripted` returns fixed answers, `plugin` loads custom workers, and
`programs` has specialists that are programs.

This package imports nothing, so that only the SDKs of configured workers are loaded.
"""
