"""Whether a plan's likeliest worker is asked before the plan is there: what the settings, its slots and the guesses before say.

How a guess is made and paid is `conductor/run/guess.py`'s; whom plans ask is learned in `plan_habits.py`.
"""

from collections import Counter
from dataclasses import replace
from decimal import Decimal

from conductor.run.guess_events import GuessOutcome
from conductor.run.record import Record
from conductor.run.team import Team
from conductor.run.team_worker import TEAM
from serving.accounts.account_policy import UNLIMITED, Policies
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
        self._planners = frozenset(pool.line(conductor.worker) if conductor else ())
        self._pool, self._habits = pool, PlanHabits()
        self._under_way = Counter[str]()
        share = self._settings.max_share if self._settings else 0.0
        self._losses = RetryBudget(share)

    def equip(self, team: Team, policies: Policies = UNLIMITED) -> Team:
        """`team`, which guesses where the settings say so. Not for whose tokens are limited: those of a call that is
        closed would be taken from the minute.
        """
        may = self._settings is not None and policies.both.tokens_per_minute is None
        return replace(team, speculation=self) if may else team

    def count(self, record: Record) -> None:
        """Learn from a run that has ended."""
        if self._settings is not None and self._has_whole_pool(record) and self._habits.count(record):
            self._losses.earn()

    def likeliest(self, record: Record) -> str | None:
        """See `Speculation.likeliest`."""
        own = self._settings
        if own is None or not self._has_whole_pool(record):
            return None
        return self._habits.likeliest(record.model, own.min_plans, own.min_agreement)

    def admit(self, worker: str, worst_usd: Decimal) -> bool:
        """See `Speculation.admit`. It counts as lost until it is kept, or nobody can say."""
        own, line = self._settings, self._pool.line(worker)
        if own is None or worst_usd > own.max_usd or not self._is_idle(line) or not self._losses.spend():
            return False
        self._under_way.update(line)
        return True

    def end(self, worker: str, outcome: GuessOutcome) -> None:
        """See `Speculation.end`."""
        self._under_way.subtract(self._pool.line(worker))
        if outcome in ("kept", "cut"):
            self._losses.refund()

    def _has_whole_pool(self, record: Record) -> bool:
        """Whether its plans may use all that those of its served name may: what a request or a policy narrows is neither
        learned nor guessed, or one key could teach the router as many pools as it likes.
        """
        model = self._pool.settings.models.get(record.model)
        if model is None:
            return False
        names = self._pool.settings.pool if model.workers is None else model.workers
        return {*names, *((TEAM,) if model.depth else ())} == set(record.workers)

    def _is_idle(self, line: tuple[str, ...]) -> bool:
        """Whether it is well, and half of its slots and of those of each that it may fail over to stay free of calls, and of
        guesses that have no slot yet. A guess waits for a plan, so it must never hold what a conductor waits for.
        """
        health = self._pool.health[line[0]]
        if health.circuit != "closed" or health.rest_s or not self._planners.isdisjoint(line):
            return False
        return all(self._pool.limiters[name].has_idle(IDLE, 1 + self._under_way[name]) for name in line)
