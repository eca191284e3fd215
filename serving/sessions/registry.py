"""Registry of the sessions of one replica, and of tasks that outlive their clients."""

import asyncio
import logging
from collections.abc import Coroutine, Generator, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager
from functools import partial
from typing import TypeVar

from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.sessions.session import Session, Watcher
from serving.store.rows import Item
from serving.store.store import StoreListener

logger = logging.getLogger("podium")

T = TypeVar("T")


class SessionRegistry(StoreListener):
    """Sessions of one replica, by the id of their run."""

    def __init__(self) -> None:
        self._sessions = dict[str, Session]()

    @property
    def running(self) -> dict[str, Run]:
        """Active runs on this replica, by id."""
        return {session.id: session.execution.run for session in self._sessions.values() if session.execution}

    @property
    def is_idle(self) -> bool:
        """Whether no session is left."""
        return not self._sessions

    def find(self, id: str) -> Run | None:
        """Return the run with this id if it is active here."""
        session = self._sessions.get(id)
        return session.execution.run if session and session.execution else None

    def find_kept(self, id: str) -> RunRecords | None:
        """Return the storable part of the run with this id if it is active here."""
        session = self._sessions.get(id)
        execution = session.execution if session else None
        return execution.journal.kept(execution.run.records) if execution else None

    def owns(self, id: str) -> bool:
        """See `StoreListener`."""
        return id in self._sessions and self._sessions[id].is_owner

    @contextmanager
    def open(self, id: str) -> Generator[Session]:
        """Use the session of a run until the end of the block."""
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
        """Return the watchers of a run."""
        session = self._sessions.get(id)
        return session.watchers if session else ()

    def spawn(self, id: str, work: Coroutine[None, None, T], name: str) -> asyncio.Task[T]:
        """Start a task for a run that outlives its client. `aclose` cancels it."""
        stack, task = ExitStack(), asyncio.create_task(work, name=name)
        session = stack.enter_context(self.open(id))
        session.tasks.add(task)

        def end(_: object) -> None:
            session.tasks.discard(task)
            stack.close()

        task.add_done_callback(end)
        return task

    async def drive(self, id: str, opened: AbstractAsyncContextManager[Session], keep_s: float) -> Run:
        """Open a run and drive it to its end in a task, for at most `keep_s` seconds. The caller must close
        the run's `answer`.
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
        self,
        opened: AbstractAsyncContextManager[Session],
        ready: "asyncio.Future[Run]",
        keep_s: float,
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
            logger.warning("cancelled a run that exceeded its limit of %g s without its client", keep_s)

    def on_cancel(self, id: str) -> None:
        """See `StoreListener`."""
        if id in self._sessions:
            self._sessions[id].cancel()

    def on_taken_over(self, id: str) -> None:
        """See `StoreListener`."""
        if id in self._sessions:
            self._sessions[id].leave()

    def on_watch(self, id: str) -> None:
        """See `StoreListener`."""
        if (run := self.find(id)) is not None:
            run.watch()

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """See `StoreListener`."""
        for watcher in self.watchers(id):
            watcher.hear(items)


def close_answer(opening: "asyncio.Future[Run | None] | asyncio.Future[Run]") -> None:
    """Close the answer of a run whose client left while the run was being opened."""
    if not opening.cancelled() and opening.exception() is None and (run := opening.result()) is not None:
        run.answer.close()


def _end_driver(ready: "asyncio.Future[Run]", task: "asyncio.Task[None]") -> None:
    error = None if task.cancelled() else task.exception()
    if not ready.done():
        ready.set_exception(error or asyncio.CancelledError())
        ready.exception()
    elif error is not None:
        logger.error("a run that outlives its client failed", exc_info=error)
