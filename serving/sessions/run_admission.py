"""Admission of runs: checks before a run starts.

A run is admitted if its key and team have not reached their rate limits, if there is a free slot and enough
memory, and if its workers are expected to be available in time. When slots or memory are short, each key gets
only a share of them. A rejected request gets the status 429 before any model is called.

The queues of the workers are in `serving/dispatch/limiter.py`.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Iterable
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, contextmanager
from math import inf
from sys import getsizeof
from typing import Any

from conductor.errors import Overloaded
from conductor.model.messages import Message, contents_of, values_in
from conductor.model.terms import Priority
from conductor.run.record import NO_ACCOUNT, Account, Record
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import ClientReply
from serving.accounts.caller import Caller
from serving.accounts.rates import RateCounter
from serving.dispatch.slots import FairQueue
from serving.fairness import RESERVED_PART, Room, add_to, share
from serving.pool import Pool
from serving.sessions.session import RunSpec
from serving.settings.settings import Settings
from serving.store.store import Records, RunInfo

MOST_READERS = 16
"""Maximum number of requests that read the same run at one router."""
PART = 4
"""The maximum number of readers of a router is `limits.max_running` divided by this."""
LOADS_AT_ONCE = 4
"""Number of requests that load stored texts at the same time. One of the places is reserved for teams that load
nothing.
"""
SMALL_BYTES = 65_536
"""Size in bytes up to which a request always fits. `limits.max_running` bounds the sum of such requests."""
RETRY_AFTER_S = 5.0
Loading = Callable[[str, Account], AbstractAsyncContextManager[object]]
"""Type of `RunAdmission.loading`."""


class RunSlots:
    """Limit of the number of runs of one router (`limits.max_running`).

    A run occupies a slot until it is stored.

    Args:
        pool: function that returns the current pool.
        n_unwritten: function that returns the number of ended runs that are not stored yet. They are not
            counted towards the share of any key.
    """

    def __init__(self, pool: Callable[[], Pool], n_unwritten: Callable[[], int]) -> None:
        self._pool, self._n_unwritten = pool, n_unwritten
        self._of_keys = Counter[str]()
        self._n_held = 0

    @property
    def n_taken(self) -> int:
        return self._n_held + self._n_unwritten()

    def check(self) -> None:
        """Check that any slot is free. The Overloaded has no numbers, because clients without a key can see
        it.
        """
        if self.n_taken >= self._pool().settings.limits.max_running:
            message = (
                "This server has reached its limit of concurrent requests (limits.max_running). Retry soon."
            )
            raise Overloaded(message, param="limits.max_running")

    def check_share(self, account: Account, priority: Priority) -> None:
        """Check that `account` may use a slot: one is free, its share is not used up, and none is reserved.
        Raise Overloaded otherwise.
        """
        self.check()
        pool, n_taken = self._pool(), self.n_taken
        if priority == "batch" and n_taken >= room_for_batch(pool):
            message = (
                f"{n_taken} requests are running, and the remaining slots are reserved for interactive requests "
                "(batches.room of limits.max_running). Retry later, or without `service_tier: flex`."
            )
            raise Overloaded(message, param="limits.max_running")
        most = (1 - RESERVED_PART) * pool.settings.limits.max_running
        has_share = self._n_held >= most and self._of_keys[account.key_id] >= share(self._of_keys)
        if account.key_id and has_share:
            message = (
                f"{n_taken} requests are running, and this API key has used its fair share of the slots (limits.max_running). "
                "Retry soon."
            )
            raise Overloaded(message, param="limits.max_running")

    @contextmanager
    def occupy(self, account: Account) -> Generator[None]:
        """Occupy a slot until the end of the block, even if none is free."""
        self._n_held += 1
        self._of_keys[account.key_id] += 1
        try:
            yield
        finally:
            self._n_held -= 1
            add_to(self._of_keys, account.key_id, -1)


class MemoryBudget:
    """Limit of the bytes of conversations in memory (`limits.max_running_bytes`): texts, images and files.

    The number of runs does not limit the memory, because one request may have up to `limits.max_body_bytes`.
    The bytes of clients that follow a run, of request bodies and of files that are being read count as well.
    When memory is short, each key gets only a share.

    Args:
        settings: function that returns the current settings.
        unwritten: function that returns the bytes of ended runs that are not stored yet, by key id.
    """

    def __init__(
        self, settings: Callable[[], Settings], unwritten: Callable[[], Counter[str]] = Counter
    ) -> None:
        self._settings, self._unwritten = settings, unwritten
        self._of_keys = Counter[str]()

    def check(self, account: Account, n_bytes: int, priority: Priority) -> None:
        """Check that `n_bytes` more fit into the budget and the key's share, or raise Overloaded. If nothing
        is in memory, any size fits.
        """
        if n_bytes <= SMALL_BYTES:
            return
        settings, of_keys = self._settings(), self._of_keys + self._unwritten()
        most = settings.limits.max_running_bytes * (settings.batches.room if priority == "batch" else 1)
        room = most - of_keys.total()
        has_share = bool(account.key_id) and of_keys[account.key_id] >= share(of_keys)
        if of_keys and n_bytes > room - (RESERVED_PART * most if has_share else 0):
            message = (
                "Requests that are running or not yet stored use the whole memory budget (limits.max_running_bytes). "
                "Retry soon."
            )
            raise Overloaded(message, retry_after_s=RETRY_AFTER_S, param="limits.max_running_bytes")

    @contextmanager
    def hold(self, account: Account, n_bytes: int, priority: Priority) -> Generator[None]:
        """Check that `n_bytes` more fit, and occupy them until the end of the block. Raise Overloaded
        otherwise.
        """
        self.check(account, n_bytes, priority)
        with self.occupy(account, n_bytes):
            yield

    @contextmanager
    def occupy(self, account: Account, n_bytes: int) -> Generator[None]:
        """Occupy `n_bytes` until the end of the block, even if they do not fit into the budget."""
        self._of_keys[account.key_id] += n_bytes
        try:
            yield
        finally:
            add_to(self._of_keys, account.key_id, -n_bytes)


class RunAdmission:
    """Admission of runs and of their readers at one router.

    A rejection is an `Overloaded` or a `RateLimited`.

    A reader is a request that follows the run of an earlier request.

    Args:
        records: store of the runs. Ended runs that are not stored yet keep their slots and their memory.
    """

    def __init__(self, pool: Callable[[], Pool], records: Records, rates: RateCounter) -> None:
        self._pool, self._records, self.rates = pool, records, rates
        self.slots = RunSlots(pool, lambda: records.n_unwritten)
        self.memory = MemoryBudget(lambda: pool().settings, records.unwritten_bytes)
        self.loads = FairQueue(LOADS_AT_ONCE)
        """Turns for work on texts that a request refers to: loading, packing and unpacking them."""
        self._readers = Room(
            "limits.max_running",
            lambda: max(MOST_READERS, pool().settings.limits.max_running // PART),
            "requests that wait for the run of an earlier request",
        )

    @asynccontextmanager
    async def loading(self, id: str, account: Account) -> AsyncGenerator[RunInfo | None]:
        """Hold the account's turn to load a stored run, and the memory for its record, until the end of the block.

        Yield facts about the run, or None if it is not stored. Raise Overloaded if there is no memory.
        """
        async with self.loads.turn(account):
            info = await self._records.info(id)
            with self.memory.hold(account, info.n_bytes if info else 0, "interactive"):
                yield info

    @asynccontextmanager
    async def loading_orphan(self, id: str) -> AsyncGenerator[None]:
        """Do as `loading` does, for a run that another router had admitted. Raise Overloaded also for a small
        record if the memory is used up, because it is compressed.
        """
        self.memory.check(NO_ACCOUNT, SMALL_BYTES + 1, "interactive")
        async with self.loading(id, NO_ACCOUNT):
            yield

    @asynccontextmanager
    async def check_rate(self, caller: Caller) -> AsyncGenerator[None]:
        """Check the caller's rate limits before the block, which loads what a request refers to. If the block
        fails, the request is counted. Otherwise it is counted later, with all of its tokens.

        Raises:
            RateLimited: a limit is reached.
        """
        if not caller.policies.limits_rates:
            yield
            return
        reservation = await self.rates.reserve(caller.account, caller.policies, 1)
        if reservation.refusal is not None:
            raise reservation.refusal
        yield
        await self.rates.give_back(caller.account, caller.policies)

    def admit(self, spec: RunSpec, account: Account) -> ExitStack:
        """Admit a new run. Return its slot and memory, to be closed at its end. Raise Overloaded if they, or
        its workers, are not available in time.
        """
        task, n_bytes = spec.task, bytes_of_task(spec.task) // (spec.n_beside + 1)
        self.slots.check_share(account, task.priority)
        self.memory.check(account, n_bytes, task.priority)
        leases = self._occupy(account, n_bytes)
        if spec.cached is None and task.priority != "batch":
            try:
                leases.enter_context(_expect_workers(spec, account))
            except Overloaded:
                leases.close()
                raise
        return leases

    def admit_again(self, record: Record, results: ClientReply) -> ExitStack:
        """Admit a run that has waited for tool results, as `admit` does, but without checking its key's share
        again.
        """
        n_bytes = bytes_of_record(record) + bytes_of_reply(results)
        self.slots.check_share(NO_ACCOUNT, record.task.priority)
        self.memory.check(record.account, n_bytes, record.task.priority)
        return self._occupy(record.account, n_bytes)

    def admit_orphan(self, record: Record) -> ExitStack:
        """Admit a run that another router had admitted, even if there is no free slot or memory."""
        return self._occupy(record.account, bytes_of_record(record))

    def _occupy(self, account: Account, n_bytes: int) -> ExitStack:
        leases = ExitStack()
        leases.enter_context(self.slots.occupy(account))
        leases.enter_context(self.memory.occupy(account, n_bytes))
        return leases

    @contextmanager
    def read(self, account: Account, n_readers: int) -> Generator[None]:
        """Count another reader of a run, which has `n_readers` at this router, until the end of the block.
        Raise Overloaded at a limit.
        """
        if n_readers >= MOST_READERS:
            message = f"{MOST_READERS} requests, the maximum, are waiting for this run's answer. Retry once it has ended."
            raise Overloaded(message)
        with self._readers.holding(account):
            yield


def room_for_batch(pool: Pool) -> int:
    """Return the number of slots that batch runs may use. The remaining slots are for interactive requests."""
    settings = pool.settings
    return max(1, int(settings.limits.max_running * settings.batches.room))


@contextmanager
def _expect_workers(spec: RunSpec, account: Account) -> Generator[None]:
    """Check that the run's workers are expected to have free slots in time, or raise Overloaded with the time
    to retry.

    The workers that the run calls first count it as queued until its call arrives, or until the end of the
    block.
    """
    waits = _Waits(spec.pool, spec.task, account)
    worst_s = waits.worst_s(spec.team)
    if worst_s > 0:
        message = "All eligible workers have full queues. Retry later."
        raise Overloaded(message, retry_after_s=worst_s)
    with ExitStack() as expected:
        for name in waits.first(spec.team) & spec.pool.limiters.keys():
            expected.enter_context(spec.pool.limiters[name].expect(spec.id, account.key_id))
        yield


class _Waits:
    """Expected times that a run waits for slots of its workers."""

    def __init__(self, pool: Pool, task: Task, account: Account) -> None:
        self._pool, self._task, self._payer = pool, task, account.key_id
        self._patience_s = inf if task.deadline_s is None else task.deadline_s

    def first(self, team: Team) -> set[str]:
        """Return the names of the workers that the run calls first, or an empty set if they are unknown."""
        if self._task.plan is not None:
            return {step.worker for step in self._task.plan.steps if not step.access}
        planner = team.planner(self._task)
        return {planner.member.name} if planner else set()

    def worst_s(self, team: Team) -> float:
        """Return the expected wait in seconds if it is too long, or 0. A given plan needs all of its workers,
        any other run the conductor and a worker.
        """
        task = self._task
        if task.plan is not None:
            return max((self._too_long_s(step.worker) for step in task.plan.steps), default=0.0)
        planner = team.planner(task)
        first_s = self._too_long_s(planner.member.name) if planner else 0.0
        if task.plan_only:
            return first_s
        names = team.pool if task.workers is None else task.workers
        candidates = [name for name in names if name not in task.exclude_workers and task.permit.allows(name)]
        return max(first_s, min((self._too_long_s(name) for name in candidates), default=0.0))

    def _too_long_s(self, name: str) -> float:
        """Return 0 if a worker or a fallback is available in time, or else the shortest wait."""
        if name not in self._pool.limiters:
            return 0.0
        line = self._pool.line(name)
        return min(self._one_s(each) for each in line if each == name or self._task.permit.allows(each))

    def _one_s(self, name: str) -> float:
        limiter = self._pool.limiters[name]
        wait_s = limiter.wait_s(self._payer)
        return wait_s if wait_s > min(limiter.max_wait_s, self._patience_s) else 0.0


def bytes_of_task(task: Task) -> int:
    """Return the size in bytes of a task's conversation, tools and answer format."""
    tools = sum(
        getsizeof(tool.description) + _bytes_of_json(tool.parameters) + _bytes_of_json(tool.format)
        for tool in task.tools.tools
    )
    format_bytes = _bytes_of_json(task.answer_format.schema) if task.answer_format else 0
    return bytes_of(task.conversation) + tools + format_bytes


def bytes_of_record(record: Record) -> int:
    """Return the size in bytes of a record's task and tool results."""
    client_replies = [segment.given for segment in record.segments if segment.given is not None]
    return bytes_of_task(record.task) + sum(map(bytes_of_reply, client_replies))


def bytes_of_reply(client_reply: ClientReply) -> int:
    """Return the size in bytes of tool results, and of the messages that the client sent with them."""
    results = Message("tool", tuple(each.result for each in client_reply.results))
    return bytes_of([results, *client_reply.said])


def bytes_of(messages: Iterable[Message]) -> int:
    return sum(map(getsizeof, contents_of(messages)))


def _bytes_of_json(value: Any) -> int:
    return sum(map(getsizeof, values_in(value)))
