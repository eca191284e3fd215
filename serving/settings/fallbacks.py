"""Fallbacks of workers: those that the settings name, or with `auto` suitable ones of the pool.

They depend on the settings alone: the same settings give the same fallbacks.
"""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from decimal import Decimal
from math import sqrt

from conductor.model.operation import Operation
from conductor.model.usage import Usage, cost_of
from serving.settings.settings import Settings
from serving.settings.worker_profile import (
    calls_tools,
    context_tokens_of,
    operations_of,
    options_of,
    places_reached,
    price_of,
    reads_pdfs,
)
from serving.settings.workers import PythonSettings, ScriptedSettings, VllmSettings, WorkerSettings, places_of

MOST = 3
"""Maximum number of fallbacks that `auto` chooses."""
DEAREST = 2
"""Maximum price of a chosen fallback, as a multiple of the worker's, so that a failover does not multiply the
bill."""
COMMON = frozenset(
    re.findall(
        r"\w+",
        """
        a about all also an and any are as at be been but by can do does done for from good great has
        have how if in into is it its just like many model more most much must no not of on one only or
        other others out own so some strong such than that the their them then these they things this
        those to up use used very well what when where which who whom will with work works best better
        """,
    )
)
"""Words that say nothing about a worker's abilities."""
TYPICAL = Usage(input_tokens=3000, output_tokens=1000)
"""Typical call, for comparing prices."""


@dataclass(frozen=True, slots=True)
class Fallback:
    """Worker that is called if another worker fails."""

    worker: str
    why: str = ""
    """Reason for the choice, or "" if the settings name it."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Worker that may become a fallback."""

    name: str
    likeness: float
    """Similarity of the two cards in steps of 0.1: within one step they count as equally similar."""
    usd: Decimal
    """Highest cost of a typical call, over its deployments."""


def fallbacks_of(worker: WorkerSettings, settings: Settings, absent: Collection[str] = ()) -> tuple[str, ...]:
    return tuple(each.worker for each in chain_of(worker, settings, absent))


def chain_of(
    worker: WorkerSettings, settings: Settings, absent: Collection[str] = ()
) -> tuple[Fallback, ...]:
    """Return the fallbacks of `worker`, in calling order, without those that are `absent`."""
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


def serves_of(worker: WorkerSettings, settings: Settings) -> frozenset[Operation]:
    """Return the operations that the worker serves. Text completion is included only if its fallbacks serve
    it too.
    """
    line = _line(worker, settings)
    may_continue = all("text_completion" in operations_of(each) for each in line)
    return operations_of(worker) if may_continue else operations_of(worker) - {"text_completion"}


def takes_of(worker: WorkerSettings, settings: Settings, before: Sequence[str] = ()) -> frozenset[str]:
    """Return the options that the worker, its fallbacks and the workers in `before` accept."""
    line = [*_line(worker, settings), *map(settings.worker, before)]
    alone = {"token_prompt"}  # a call with it uses no fallbacks
    return frozenset(
        name for name in options_of(worker) if name in alone or all(name in options_of(each) for each in line)
    )


def _line(worker: WorkerSettings, settings: Settings) -> list[WorkerSettings]:
    return [worker, *(settings.worker(name) for name in fallbacks_of(worker, settings))]


def _candidate(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> _Candidate | None:
    """Return `other` as a candidate, or None if it lacks an ability of `worker` or its price is unknown."""
    usd = _most_usd(other)
    is_leader = settings.conductor is not None and settings.conductor.worker == other.name
    if other.name == worker.name or is_leader or isinstance(other, PythonSettings) or usd is None:
        return None
    if not (_is_as_able(other, worker, settings) and _is_as_near(other, worker, settings)):
        return None
    return _Candidate(other.name, round(likeness(worker.card, other.card), 1), usd)


def _is_as_able(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> bool:
    """Return whether `other` accepts all that `worker` accepts, as far as that is known."""
    own_tokens, tokens = (context_tokens_of(each, settings) for each in (worker, other))
    return (
        (other.sees_images or not worker.sees_images)
        and (reads_pdfs(other) or not reads_pdfs(worker))
        and (calls_tools(other, settings) is not False or calls_tools(worker, settings) is False)
        and (own_tokens is None or tokens is None or tokens >= own_tokens)
    )


def _is_as_near(other: WorkerSettings, worker: WorkerSettings, settings: Settings) -> bool:
    """Return whether `other` is on another engine than `worker`, local if it is, and a real model if it is."""
    owner = _engine_owner(worker, settings)
    return (
        (owner is None or owner != _engine_owner(other, settings))
        and (_stays_local(other) or not _stays_local(worker))
        and (_is_scripted(worker, settings) or not _is_scripted(other, settings))
    )


def _engine_owner(worker: WorkerSettings, settings: Settings) -> str | None:
    return settings.owner_of(worker).name if isinstance(worker, VllmSettings) else None


def _stays_local(worker: WorkerSettings) -> bool:
    return all(place.is_local for place in places_reached(worker))


def _is_scripted(worker: WorkerSettings, settings: Settings) -> bool:
    if isinstance(worker, VllmSettings):
        return bool(settings.owner_of(worker).stand_in)
    return isinstance(worker, ScriptedSettings)


def _least_usd(worker: WorkerSettings) -> Decimal:
    """Return the cost of a typical call at the cheapest deployment. An unknown price counts as zero, so that
    only free workers are chosen as fallbacks.
    """
    return min(cost or Decimal(0) for cost in _costs(worker))


def _most_usd(worker: WorkerSettings) -> Decimal | None:
    """Return the cost of a typical call at the most expensive deployment, or None if a price is unknown."""
    costs = [cost for cost in _costs(worker) if cost is not None]
    return max(costs) if len(costs) == len(places_of(worker)) else None


def _costs(worker: WorkerSettings) -> list[Decimal | None]:
    return [cost_of(price_of(place), TYPICAL) for place in places_of(worker).values()]


def _why(candidate: _Candidate, usd: Decimal) -> str:
    """Return how a fallback was chosen. `usd` is the cost of a typical call to the worker that it replaces."""
    how = (
        f"by similarity of the cards ({candidate.likeness})"
        if candidate.likeness
        else "by price, because no card is similar"
    )
    if not candidate.usd:
        return f"{how}, at no cost"
    times = f"{candidate.usd / usd:.2g}"
    cost = "at the same price" if times == "1" else f"at {times} times the price"
    return f"{how}, {cost}"


def likeness(one: str, other: str) -> float:
    """Return the cosine similarity of the word counts of two cards, from 0 (no word in common) to 1."""
    mine, theirs = _words(one), _words(other)
    shared = sum(count * theirs[word] for word, count in mine.items())
    return shared / (_length(mine) * _length(theirs)) if shared else 0.0


def _words(card: str) -> Counter[str]:
    """Return how often each word occurs in a card. A final `s` is removed, to count plurals with their
    singular.
    """
    words = re.findall(r"[^\W\d_]{2,}", card.lower())
    return Counter(word.removesuffix("s") for word in words if word not in COMMON)


def _length(words: Counter[str]) -> float:
    return sqrt(sum(count * count for count in words.values()))
