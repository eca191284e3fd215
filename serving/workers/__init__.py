"""One file per wire: each turns a way of speaking to a model into a `conductor.model.worker.Worker`.

`openai`, `anthropic` and `gemini` speak HTTP through the provider's official SDK and share `faults` (what a
failure means to us) and `images` (what a `data:` address holds). `vllm` speaks to a replica in this
cluster, `scripted` to nobody.
Nothing is imported here: whoever uses one wire loads that SDK and no other.
"""
