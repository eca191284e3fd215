"""Whether a plan's likeliest worker is asked before the plan is there: what the settings, its slots and the guesses before say.

How a guess is made and paid is `conductor/run/guess.py`'s; whom plans ask is learned in `plan_habits.py`.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

from conductor.run.events import GuessOutcome
from conductor.run.record import Record
from conductor.run.team import Team
from serving.layers.hedging import IDLE
from serving.layers.retry_budget import RetryBudget
from serving.pool import Pool
from serving.runs.plan_habits import PlanHabits
from serving.settings.sections import SpeculationSettings


class Guesses:
    """Those of one router over one pool: a `conductor.run.speculation.Speculation`. New settings begin to learn again, since
    plans are of a conductor with its prompts and its team.

    Args:
        pool: the workers, and the settings.
    """

    def __init__(self, pool: Pool) -> None:
        conductor = pool.settings.conductor
        self._settings: SpeculationSettings | None = conductor.speculation if conductor else None
        self._pool, self._habits = pool, PlanHabits()
        self._under_way = Counter[str]()
        share = self._settings.max_share if self._settings else 0.0
        self._losses = RetryBudget(share)

    def equip(self, team: Team) -> Team:
        """`team`, which guesses where the settings say so."""
        return replace(team, speculation=self) if self._settings else team

    def count(self, record: Record) -> None:
        """Learn from a run that has ended."""
        if self._settings is not None and self._habits.count(record):
            self._losses.earn()

    def likeliest(self, record: Record) -> str | None:
        """See `Speculation.likeliest`."""
        own = self._settings
        return self._habits.likeliest(record, own.min_plans, own.min_agreement) if own else None

    def admit(self, worker: str, worst_usd: Decimal) -> bool:
        """See `Speculation.admit`. It counts as lost until it is kept."""
        own = self._settings
        if own is None or worst_usd > own.max_usd or not self._is_idle(worker) or not self._losses.spend():
            return False
        self._under_way[worker] += 1
        return True

    def end(self, worker: str, outcome: GuessOutcome) -> None:
        """See `Speculation.end`."""
        self._under_way[worker] -= 1
        if outcome == "kept":
            self._losses.refund()

    def _is_idle(self, worker: str) -> bool:
        """Whether half of its slots stay free of calls, and of guesses that have no slot yet: those who wait for a plan must
        not hold all of what a conductor may fail over to.
        """
        limiter, health = self._pool.limiters[worker], self._pool.health[worker]
        return health.circuit == "closed" and limiter.has_idle(IDLE, 1 + self._under_way[worker])
