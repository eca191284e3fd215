"""Who answers in a worker's place: those that its settings name, or with `auto` those of the pool that fit.

Worked out from the settings alone: the same settings have the same chains.
"""

from collections.abc import Collection
from dataclasses import dataclass
from decimal import Decimal

from conductor.model.usage import Usage, cost_of
from serving.settings.context_tokens import context_tokens_of
from serving.settings.likeness import likeness
from serving.settings.pdf_reading import reads_pdfs
from serving.settings.places import places_reached
from serving.settings.settings import Settings
from serving.settings.tool_use import calls_tools
from serving.settings.worker_price import price_of
from serving.settings.workers import PythonSettings, ScriptedSettings, VllmSettings, WorkerSettings, places_of

MOST = 3
"""How many are chosen at most."""
DEAREST = 2
"""How many times as much they may cost: a failover must not multiply a bill unasked."""
TYPICAL = Usage(input_tokens=3000, output_tokens=1000)
"""The call by which prices are compared."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """One who answers in a worker's place."""

    worker: str
    why: str = ""
    """How it was chosen; empty: the settings name it."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """One who may answer in a worker's place."""

    name: str
    likeness: float
    """Of the cards, in steps of 0.1: within one they are about equally alike."""
    usd: Decimal
    """The most that a typical call of it costs."""


def fallbacks_of(worker: WorkerSettings, settings: Settings, absent: Collection[str] = ()) -> tuple[str, ...]:
    """The names of those that are asked where `worker` fails; see `chain_of`."""
    return tuple(each.worker for each in chain_of(worker, settings, absent))


def chain_of(
    worker: WorkerSettings, settings: Settings, absent: Collection[str] = ()
) -> tuple[Fallback, ...]:
    """Those that are asked where `worker` fails, in order.

    Args:
        worker: who fails.
        settings: with everybody who may be chosen, and with prices.
        absent: names of those who may not.
    """
    if worker.fallbacks != "auto":
        return tuple(Fallback(name) for name in worker.fallbacks)
    usd = _least_usd(worker)
    fitting = [
        candidate
        for name in settings.pool
        if name not in absent and (candidate := _candidate(settings.worker(name), worker, settings))
        if candidate.usd <= DEAREST * usd
    ]

    def order(each: _Candidate) -> tuple[float, Decimal, Decimal]:
        return -each.likeness, each.usd if each.likeness else abs(each.usd - usd), each.usd

    return tuple(Fallback(each.name, _why(each, usd)) for each in sorted(fitting, key=order)[:MOST])


def _candidate(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> _Candidate | None:
    """`other`, where it can do all that `worker` can and its price is known."""
    usd = _most_usd(other)
    is_leader = settings.conductor is not None and settings.conductor.worker == other.name
    if other.name == worker.name or is_leader or isinstance(other, PythonSettings) or usd is None:
        return None
    if not (_is_as_able(other, worker, settings) and _is_as_near(other, worker, settings)):
        return None
    return _Candidate(other.name, round(likeness(worker.card, other.card), 1), usd)


def _is_as_able(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> bool:
    """Whether `other` takes what `worker` takes, as far as it is known."""
    own_tokens, tokens = (context_tokens_of(each, settings) for each in (worker, other))
    return (
        (other.sees_images or not worker.sees_images)
        and (reads_pdfs(other) or not reads_pdfs(worker))
        and (calls_tools(other, settings) is not False or calls_tools(worker, settings) is False)
        and (own_tokens is None or tokens is None or tokens >= own_tokens)
    )


def _is_as_near(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> bool:
    """Whether `other` is somewhere else than `worker`, but on one's own machines where `worker` is there; and a model
    where `worker` is one.
    """
    owner = _engine_owner(worker)
    return (
        (owner is None or owner != _engine_owner(other))
        and (_is_local(other) or not _is_local(worker))
        and (_is_scripted(worker, settings) or not _is_scripted(other, settings))
    )


def _engine_owner(worker: WorkerSettings) -> str | None:
    return (worker.deployment or worker.name) if isinstance(worker, VllmSettings) else None


def _is_local(worker: WorkerSettings) -> bool:
    return all(place.is_local for place in places_reached(worker))


def _is_scripted(worker: WorkerSettings, settings: Settings) -> bool:
    owner = settings.worker(_engine_owner(worker) or worker.name)
    return isinstance(owner, ScriptedSettings) or (isinstance(owner, VllmSettings) and bool(owner.stand_in))


def _least_usd(worker: WorkerSettings) -> Decimal:
    """What a typical call costs where it is cheapest. A price that is not known counts as none, so that only
    those who cost nothing take its place.
    """
    return min(cost or Decimal(0) for cost in _costs(worker))


def _most_usd(worker: WorkerSettings) -> Decimal | None:
    """What it costs where it is dearest; None where this is not known."""
    costs = [cost for cost in _costs(worker) if cost is not None]
    return max(costs) if len(costs) == len(places_of(worker)) else None


def _costs(worker: WorkerSettings) -> list[Decimal | None]:
    return [cost_of(price_of(place), TYPICAL) for place in places_of(worker).values()]


def _why(candidate: _Candidate, usd: Decimal) -> str:
    """How it was chosen; `usd` is what a typical call costs of the one whose place it takes."""
    how = (
        f"by card (likeness {candidate.likeness})"
        if candidate.likeness
        else "by price, as its card is not alike"
    )
    cost = f"at {candidate.usd / usd:.2g} times its price" if candidate.usd else "at no price"
    return f"{how}, {cost}"
