"""Settings that have no effect: each with the reason and a remedy. They do no harm, so they are not rejected:
the log at the start and `podium doctor` report them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from serving.settings.settings import Settings
from serving.settings.workers import API_SETTINGS

LEAST_SLOTS_TO_HEDGE = 4
"""Minimum number of slots for hedging. With fewer, half of them are never free while a late
call and its hedge are open. It must agree with `serving/dispatch/build.py`, which a test checks."""


@dataclass(frozen=True, slots=True)
class WithoutEffect:
    """Setting that has no effect.

    Args:
        message: sentence that names the setting and says why it has no effect.
        remedy: what to do.
    """

    message: str
    remedy: str


def without_effect(settings: Settings) -> list[WithoutEffect]:
    """Return the settings in `settings` that have no effect."""
    return [*_hedges(settings), *_skips(settings)]


def _hedges(settings: Settings) -> Iterator[WithoutEffect]:
    for index, worker in enumerate(settings.workers):
        where = f"`hedge: true` of worker {worker.name} (workers[{index}].hedge) has no effect"
        if worker.hedge and worker.max_concurrency < LEAST_SLOTS_TO_HEDGE:
            yield WithoutEffect(
                f"{where} with `max_concurrency: {worker.max_concurrency}`, because half of the slots are never free while two calls are open.",
                f"Set `max_concurrency` of {worker.name} to at least {LEAST_SLOTS_TO_HEDGE}, or remove its `hedge`.",
            )
        elif worker.hedge and isinstance(worker, API_SETTINGS) and len(worker.deployments) == 1:
            yield WithoutEffect(
                f"{where}, because the second call goes to another deployment and the worker has only one.",
                f"Add a second deployment to {worker.name}, move the fields of its only deployment to the worker, or remove its `hedge`.",
            )


def _skips(settings: Settings) -> Iterator[WithoutEffect]:
    for name, steps in settings.workflows.items():
        if steps[-1].on_failure == "skip":
            yield WithoutEffect(
                f"`on_failure: skip` of the last step of {name} (workflows.{name}[{len(steps) - 1}].on_failure) has no effect, "
                "because that step writes the answer and is never skipped.",
                f"Add `fallbacks` to the worker {steps[-1].worker}, or remove `on_failure` from the step.",
            )
