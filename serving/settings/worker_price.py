"""Prices of workers' tokens, as far as they are known."""

from conductor.model.usage import FREE, Price
from serving.settings.workers import ScriptedSettings, VllmSettings, WorkerSettings


def price_of(worker: WorkerSettings) -> Price | None:
    """Return the worker's price: the one that is set, or zero for kinds that are not billed by tokens. None
    if unknown.
    """
    if worker.price is not None:
        return worker.price.to_price()
    return FREE if isinstance(worker, VllmSettings | ScriptedSettings) else None
