"""What the tokens of a worker cost, as far as it is known."""

from conductor.model.usage import FREE, Price
from serving.settings.workers import ScriptedSettings, VllmSettings, WorkerSettings


def price_of(worker: WorkerSettings) -> Price | None:
    """What was set; nothing where nobody bills by the token; unknown for a provider whose price is not
    set.
    """
    if worker.price is not None:
        return worker.price.to_price()
    return FREE if isinstance(worker, VllmSettings | ScriptedSettings) else None
