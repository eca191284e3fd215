"""Prices and context lengths of workers, as far as the settings give them."""

from conductor.model.usage import FREE, Price
from serving.settings.settings import Settings
from serving.settings.workers import ScriptedSettings, VllmSettings, WorkerSettings


def context_tokens_of(worker: WorkerSettings, settings: Settings) -> int | None:
    """Return the worker's context length in tokens: from the settings, or from its vLLM engine's arguments.
    None if vLLM decides.
    """
    if worker.context_tokens:
        return worker.context_tokens
    owner = (
        settings.worker(worker.deployment)
        if isinstance(worker, VllmSettings) and worker.deployment
        else worker
    )
    tokens = owner.engine.get("max_model_len") if isinstance(owner, VllmSettings) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def price_of(worker: WorkerSettings) -> Price | None:
    """Return the worker's price: the one that is set, or zero for kinds that are not billed by tokens. None
    if unknown.
    """
    if worker.price is not None:
        return worker.price.to_price()
    return FREE if isinstance(worker, VllmSettings | ScriptedSettings) else None
