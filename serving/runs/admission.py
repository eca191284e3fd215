"""Whether one more run may begin: before anything is planned, called or paid.

A run that would wait too long is refused here with 429, and not in its middle, where others have worked for it.
The lines themselves are `serving/dispatch/limiter.py`'s.
"""

from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from math import inf

from conductor.errors import Overloaded
from conductor.model.priority import Priority
from conductor.run.record import Account
from conductor.run.task import Task
from conductor.run.team import Team
from serving.pool import Pool
from serving.shares import KEPT, share


def room_for_batch(pool: Pool) -> int:
    """How many runs there may be before one that nobody waits for begins: whoever waits for an answer has the rest."""
    settings = pool.settings
    return max(1, int(settings.limits.max_running * settings.batches.room))


def check_places(running: int, pool: Pool) -> None:
    """Whether a run may be taken, whoever asks. The error is told to strangers too, so it says no number.

    Raises:
        Overloaded: as many are under way, or have ended and are not written yet, as may be.
    """
    if running >= pool.settings.limits.max_running:
        message = "This server has as many requests as it takes at once (limits.max_running). Try again soon."
        raise Overloaded(message, param="limits.max_running")


def check_room(
    accounts: Iterable[Account], running: int, pool: Pool, account: Account, priority: Priority
) -> None:
    """Whether there is room for one more run.

    Args:
        accounts: of the runs under way.
        running: how many there are, with those that have ended and are not written yet.
        pool: with the limits.
        account: who asks.
        priority: of the run.

    Raises:
        Overloaded: there is none, or none for what can wait, or the key has its share of it.
    """
    check_places(running, pool)
    if priority == "batch" and running >= room_for_batch(pool):
        message = (
            f"{running} requests are under way here, and the places left are for those that somebody waits for. "
            "Try again later, or without `service_tier: flex` (batches.room of limits.max_running)."
        )
        raise Overloaded(message, param="limits.max_running")
    most = (1 - KEPT) * pool.settings.limits.max_running
    if not account.key_id or running < most:
        return
    of_keys = Counter(each.key_id for each in accounts)
    # whose the others are is not counted any more
    if of_keys.total() >= most and of_keys[account.key_id] >= share(of_keys):
        message = (
            f"{running} requests are under way here, and this key has its share of them (limits.max_running). "
            "Try again soon."
        )
        raise Overloaded(message, param="limits.max_running")


@contextmanager
def enter_lines(pool: Pool, team: Team, task: Task, account: Account, run: str) -> Generator[ExitStack]:
    """Let the run of that id in where those whom it calls can be expected to have a slot for it in time. Those whom it
    calls first expect it, until its call is there or what this gives is closed.

    Raises:
        Overloaded: they cannot; it says when it may be worth asking again.
    """
    if task.priority == "batch":
        yield ExitStack()
        return
    waits = _Waits(pool, task, account)
    worst_s = waits.worst_s(team)
    if worst_s > 0:
        message = "Those who would answer have too many calls before them. Try again later."
        raise Overloaded(message, retry_after_s=worst_s)
    with ExitStack() as expected:
        for name in waits.first(team) & pool.limiters.keys():
            expected.enter_context(pool.limiters[name].expect(run, account.key_id))
        yield expected


class _Waits:
    """How long a run of `task` would wait for its workers' slots."""

    def __init__(self, pool: Pool, task: Task, account: Account) -> None:
        self._pool, self._task, self._payer = pool, task, account.key_id
        self._patience_s = inf if task.deadline_s is None else task.deadline_s

    def first(self, team: Team) -> set[str]:
        """Whom the run calls first, as far as this is known."""
        if self._task.plan is not None:
            return {step.worker for step in self._task.plan.steps if not step.access}
        planner = team.planner(self._task)
        return {planner.member.name} if planner else set()

    def worst_s(self, team: Team) -> float:
        """The longest of the waits that are too long; 0: none is. Each worker of a given plan is needed; else the
        conductor, and any one of those whom it may ask.
        """
        task = self._task
        if task.plan is not None:
            return max((self._too_long_s(step.worker) for step in task.plan.steps), default=0.0)
        planner = team.planner(task)
        first_s = self._too_long_s(planner.member.name) if planner else 0.0
        if task.plan_only:
            return first_s
        names = team.pool if task.workers is None else task.workers
        asked = [name for name in names if name not in task.exclude_workers and task.permit.allows(name)]
        return max(first_s, min((self._too_long_s(name) for name in asked), default=0.0))

    def _too_long_s(self, name: str) -> float:
        """How long the wait for that worker, or for the soonest of its fallbacks, is; 0: not too long."""
        if name not in self._pool.limiters:
            return 0.0
        line = self._pool.line(name)
        return min(self._one_s(each) for each in line if each == name or self._task.permit.allows(each))

    def _one_s(self, name: str) -> float:
        limiter = self._pool.limiters[name]
        wait_s = limiter.wait_s(self._payer)
        return wait_s if wait_s > min(limiter.max_wait_s, self._patience_s) else 0.0
