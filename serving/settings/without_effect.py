"""What settings ask for that never happens: each by its field, why, and what to write instead. It does no harm, so it is told at
the start and by `podium doctor`, and nothing is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS

LEAST_SLOTS_TO_HEDGE = 4
"""With fewer, half of them are never free beside the call that is about to be made, and a hedge is made beside the one that is
late (`serving/dispatch/build.py`; a test says that both agree).
"""


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """A setting that does nothing.

    Args:
        said: which, and why, in a sentence.
        remedy: what to do.
    """

    said: str
    remedy: str


def without_effect(settings: Settings) -> list[WithoutEffect]:
    """All of `settings`."""
    return [*_hedges(settings), *_skips(settings)]


def _hedges(settings: Settings) -> Iterator[WithoutEffect]:
    for index, worker in enumerate(settings.workers):
        where = f"`hedge: true` of the worker {worker.name} (workers[{index}].hedge) does nothing"
        if worker.hedge and worker.max_concurrency < LEAST_SLOTS_TO_HEDGE:
            yield WithoutEffect(
                f"{where} with `max_concurrency: {worker.max_concurrency}`: half of its slots are never free beside two calls.",
                f"Set `max_concurrency` of {worker.name} to {LEAST_SLOTS_TO_HEDGE} or more, or leave its `hedge` out.",
            )
        elif worker.hedge and isinstance(worker, API_SETTINGS) and len(worker.deployments) == 1:
            yield WithoutEffect(
                f"{where}: the second call goes to another of its `deployments`, and there is one.",
                f"Write a second deployment of {worker.name}, or say of it what the one says, or leave its `hedge` out.",
            )


def _skips(settings: Settings) -> Iterator[WithoutEffect]:
    for name, steps in settings.workflows.items():
        if steps[-1].on_failure == "skip":
            yield WithoutEffect(
                f"`on_failure: skip` of the last step of {name} (workflows.{name}[{len(steps) - 1}].on_failure) does nothing: "
                "that step is the answer, and is never skipped.",
                f"Give its worker {steps[-1].worker} `fallbacks`, or leave the step's `on_failure` out.",
            )
