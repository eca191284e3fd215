"""What settings ask for that never happens: each by its field, why, and what to write instead. It does no harm, so it is told at
the start and by `podium doctor`, and nothing is refused.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from conductor.model.usage import Usage
from serving.settings.fallbacks import fallbacks_of
from serving.settings.sections import ModelSettings
from serving.settings.settings import Settings
from serving.settings.worker_price import price_of
from serving.settings.workers import API_SETTINGS, WorkerSettings, places_of

LEAST_SLOTS_TO_GUESS = 2
LEAST_SLOTS_TO_HEDGE = 4
"""With fewer, half of them are never free beside the call that is about to be made, and a hedge is made beside the one that is
late (`serving/layers/hedging.py`; a test says that both agree).
"""
ONE_CALL = Usage(input_tokens=1, output_tokens=1)


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
    """All of `settings`; those of what they leave to the price table only where its prices are in them."""
    return [*_speculation(settings), *_hedges(settings), *_skips(settings)]


def _speculation(settings: Settings) -> Iterator[WithoutEffect]:
    if settings.conductor is None or settings.conductor.speculation is None or not settings.models:
        return
    why: dict[tuple[str, str], list[str]] = {}
    for name, model in settings.models.items():
        if model.max_tokens is not None:
            reason = "its requests have `max_tokens`", "Leave its `max_tokens` out."
            why.setdefault(reason, []).append(f"models.{name}")
            continue
        for worker in settings.pool if model.workers is None else model.workers:
            reason = _why_not_early(settings.worker(worker), model, settings)
            if reason is None:
                return
            why.setdefault(reason, []).append(worker)
    if not why:  # nobody is in the pool
        return
    reasons = "; ".join(f"{', '.join(dict.fromkeys(names))}: {reason}" for (reason, _), names in why.items())
    remedies = " ".join(remedy for _, remedy in why)
    yield WithoutEffect(
        f"`conductor.speculation` does nothing, as nobody can be asked before the plan is there ({reasons}).",
        f"{remedies} Or leave `conductor.speculation` out.",
    )


def _why_not_early(
    worker: WorkerSettings, model: ModelSettings, settings: Settings
) -> tuple[str, str] | None:
    """Why it is never asked before a plan of `model` is there, and what to do; None: it may be.

    Its fallbacks count with it: they may have to answer. So it is at run time, in `serving/runs/guesses.py`.
    """
    conductor = settings.conductor
    assert conductor is not None
    assert conductor.speculation is not None
    line, planners = _line(worker, settings), _line(settings.worker(conductor.worker), settings)
    prices = [price_of(place) for each in line for place in places_of(each).values()]
    known = [price for price in prices if price is not None]
    if {each.name for each in line} & {each.name for each in planners}:
        return (
            "plans, or shares a fallback with the conductor",
            "Give the conductor and the others `fallbacks` of their own.",
        )
    if len(known) < len(prices):
        return "its price or a fallback's is not known", "Set the `price` of those without one."
    if any(price.most(ONE_CALL) for price in known):
        if model.max_cost_usd is not None:
            return (
                "its tokens or a fallback's cost something, and the model has `max_cost_usd`",
                "Leave the model's `max_cost_usd` out.",
            )
        if not conductor.speculation.max_usd:
            return (
                "its tokens or a fallback's cost something, and `max_usd` is 0",
                "Set `conductor.speculation.max_usd` to what a call for nothing may cost.",
            )
    if any(each.max_concurrency < LEAST_SLOTS_TO_GUESS for each in line):
        return (
            f"its `max_concurrency` or a fallback's is below {LEAST_SLOTS_TO_GUESS}, and half of the slots must stay free",
            f"Set `max_concurrency` of those below to {LEAST_SLOTS_TO_GUESS} or more.",
        )
    return None


def _line(worker: WorkerSettings, settings: Settings) -> list[WorkerSettings]:
    """It, and who answers in its place."""
    return [worker, *(settings.worker(name) for name in fallbacks_of(worker, settings))]


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
