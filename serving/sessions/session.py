"""Sessions: a session has the state of one run on this replica.

This includes the resources of the run, the clients that follow it, and the tasks that outlive the client.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Protocol, TypeVar

from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import ClientReply
from serving.accounts.rates import NO_RATES, RateReservation
from serving.pool import Pool
from serving.store.content import ContentJournal
from serving.store.rows import Item
from serving.store.store import StoreListener


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """Specification of a run to start or to resume.

    Args:
        pool: pool of `team`. The request keeps it open until the run has begun.
        cached: record of an earlier run whose answer is returned. None to call models.
        is_cached: whether the answer may be cached for equal requests.
        n_beside: number of other runs of the same request. They share the conversation in memory.
        before_calls: function that is awaited after the run is admitted, before it calls models. Or None.
        resumed: records of the run, if another process has left it or it waits for tool results.
        results: tool results that a suspended run continues with, or None.
        paid_usd: total amount that the payer's ledger has booked for the resumed run.
    """

    id: str
    task: Task
    team: Team
    pool: Pool
    headers: dict[str, str] = field(default_factory=dict[str, str])
    rate: RateReservation = NO_RATES
    cached: Record | None = None
    is_cached: bool = False
    n_beside: int = 0
    before_calls: Callable[[], Awaitable[None]] | None = None
    resumed: RunRecords | None = None
    results: ClientReply | None = None
    paid_usd: Decimal = Decimal(0)


class Watcher(Protocol):
    """Receiver of the events of a run that this replica executes."""

    def hear(self, items: Sequence[Item]) -> None:
        """Handle new events of the run. An empty sequence means that the run is over."""
        ...


@dataclass(slots=True, eq=False)
class Execution:
    """Resources of a run while this replica executes it. At its end, the rate of `spec` is settled; `leases`,
    slot and memory, close after it is stored.
    """

    run: Run
    spec: RunSpec
    journal: ContentJournal
    leases: ExitStack


class Session:
    """State of one run on this replica.

    The session exists as long as the run is executed, read or watched here, or has tasks. By default, a run
    ends with the block that started it. There are three exceptions:

    * A run with `is_kept` outlives its client. If this process ends, another replica continues it.
    * When a run waits for tool results, its execution ends. The tool results start another execution, on any
      replica.
    * When another replica takes over the run, its execution here stops.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.execution: Execution | None = None
        self.is_kept = False
        """True if the run outlives its client."""
        self.tasks = set[asyncio.Task[object]]()
        """Tasks that outlive the client: driving, finishing or resuming the run."""
        self.n_readers = 0
        """Number of requests that follow the run through the store."""
        self.watchers: list[Watcher] = []
        self.n_users = 0
        """Number of blocks that use this session. The session is dropped at the end of the last block."""

    @property
    def run(self) -> Run:
        assert self.execution is not None, "the run is executed here"
        return self.execution.run

    @property
    def is_owner(self) -> bool:
        """True if this replica executes the run or is about to start it."""
        return self.execution is not None or bool(self.tasks)

    def cancel(self) -> None:
        if self.execution is not None:
            self.execution.run.cancel()

    def leave(self) -> None:
        """Stop the execution of the run on this replica, if there is one. Another replica continues the run."""
        if self.execution is not None:
            self.execution.run.detach()
            self.execution.run.cancel()


logger = logging.getLogger("podium")

T = TypeVar("T")


class SessionRegistry(StoreListener):
    """Registry of the sessions of one replica, by the ids of their runs."""

    def __init__(self) -> None:
        self._sessions = dict[str, Session]()

    @property
    def running(self) -> dict[str, Run]:
        """Runs that this replica executes, by id."""
        return {session.id: session.execution.run for session in self._sessions.values() if session.execution}

    @property
    def is_idle(self) -> bool:
        return not self._sessions

    def find(self, id: str) -> Run | None:
        """Return the run with this id if this replica executes it. Otherwise return None."""
        session = self._sessions.get(id)
        return session.execution.run if session and session.execution else None

    def find_kept(self, id: str) -> RunRecords | None:
        """Return the records of a run that this replica executes, as stored, or None."""
        session = self._sessions.get(id)
        execution = session.execution if session else None
        return execution.journal.storable(execution.run.records) if execution else None

    def owns(self, id: str) -> bool:
        return id in self._sessions and self._sessions[id].is_owner

    @contextmanager
    def open(self, id: str) -> Generator[Session]:
        """Use the session of a run until the end of the block. Create it if it does not exist."""
        session = self._sessions.setdefault(id, Session(id))
        session.n_users += 1
        try:
            yield session
        finally:
            session.n_users -= 1
            if not session.n_users:
                del self._sessions[id]

    @contextmanager
    def watch(self, id: str, watcher: Watcher) -> Generator[None]:
        """Send the events of a run to `watcher` until the end of the block."""
        with self.open(id) as session:
            session.watchers.append(watcher)
            try:
                yield
            finally:
                session.watchers.remove(watcher)

    def watchers(self, id: str) -> Sequence[Watcher]:
        session = self._sessions.get(id)
        return session.watchers if session else ()

    def spawn(self, id: str, work: Coroutine[None, None, T], name: str) -> asyncio.Task[T]:
        """Start a task of a run that outlives the client. It is cancelled when the replica stops."""
        stack, task = ExitStack(), asyncio.create_task(work, name=name)
        session = stack.enter_context(self.open(id))
        session.tasks.add(task)

        def end(_: object) -> None:
            session.tasks.discard(task)
            stack.close()

        task.add_done_callback(end)
        return task

    async def drive(self, id: str, opened: AbstractAsyncContextManager[Session], keep_s: float) -> Run:
        """Execute a run in a task for at most `keep_s` seconds, and return the started run, whose `answer`
        must be closed.
        """
        ready: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        task = self.spawn(id, self._drive_on(opened, ready, keep_s), "run kept")
        task.add_done_callback(partial(_end_driver, ready))
        try:
            return await asyncio.shield(ready)
        except asyncio.CancelledError:  # the client left; the run continues
            ready.add_done_callback(close_answer)
            raise

    async def _drive_on(
        self, opened: AbstractAsyncContextManager[Session], ready: "asyncio.Future[Run]", keep_s: float
    ) -> None:
        deadline = asyncio.timeout(keep_s)
        try:
            async with deadline, opened as session:
                session.is_kept = True
                run = session.run
                ready.set_result(run)
                async for _ in run.subscribe():
                    pass
        except TimeoutError:
            if not deadline.expired():
                raise
            logger.warning(
                "Cancelled a run that exceeded the limit of %g s for runs without a client", keep_s
            )

    def on_cancel(self, id: str) -> None:
        if id in self._sessions:
            self._sessions[id].cancel()

    def on_taken_over(self, id: str) -> None:
        if id in self._sessions:
            self._sessions[id].leave()

    def on_watch(self, id: str) -> None:
        if (run := self.find(id)) is not None:
            run.watch()

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        for watcher in self.watchers(id):
            watcher.hear(items)


def close_answer(opening: "asyncio.Future[Run | None] | asyncio.Future[Run]") -> None:
    """Close the answer of a run whose client disconnected while the run was being opened."""
    if not opening.cancelled() and opening.exception() is None and (run := opening.result()) is not None:
        run.answer.close()


def _end_driver(ready: "asyncio.Future[Run]", task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if not ready.done():
        ready.set_exception(error or asyncio.CancelledError())
        ready.exception()
    elif error is not None:
        logger.error("A run that continues without its client failed", exc_info=error)
