"""How long a prompt and its answer may be together, as far as it is known."""

from serving.settings.settings import Settings
from serving.settings.workers import VllmSettings, WorkerSettings


def context_tokens_of(worker: WorkerSettings, settings: Settings) -> int | None:
    """What the settings say, else what its vLLM engine is configured for; None where vLLM decides."""
    if worker.context_tokens:
        return worker.context_tokens
    owner = (
        settings.worker(worker.deployment)
        if isinstance(worker, VllmSettings) and worker.deployment
        else worker
    )
    tokens = owner.engine.get("max_model_len") if isinstance(owner, VllmSettings) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None
