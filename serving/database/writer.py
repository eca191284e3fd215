"""Batched writes to the database: one writer per replica commits the writes of all its requests together.

While one batch is being committed, the next one is collected. A busy replica therefore executes a few large
transactions instead of many small ones. Replicas also do not compete for the same rows with one connection
per request. The writer does not depend on any table. It executes an `Operation`.

An operation is a function that uses a synchronous SQLAlchemy connection, so it works for both databases.
SQLite's connection is used in a thread, PostgreSQL's through `AsyncConnection.run_sync`.
"""
# asyncpg has no type annotations.
# pyright: reportMissingTypeStubs=false

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Self, TypeVar

import asyncpg
from sqlalchemy import Connection, NullPool
from sqlalchemy.ext.asyncio import AsyncConnection

from serving.database.address import Address
from serving.database.database import (
    PostgresConnection,
    connect_postgresql,
    make_postgresql_engine,
    make_sqlite_writer,
)
from serving.database.outages import REFUSED, driver_errors, is_away, unavailable

logger = logging.getLogger("podium")

Item = TypeVar("Item")
Result = TypeVar("Result")

MAX_BATCH = 256
COMMAND_S = 10.0
"""Timeout of a statement, in seconds. When it expires, the connection is closed."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
"""Seconds between two attempts to reach an unreachable database. The pause grows from the first value to the
second."""
FLUSH_S = 5.0
"""Seconds for which a closing writer tries to write its remaining items."""
RETRIES = 3
TRY_AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, asyncpg.UniqueViolationError)
"""Errors after which a batch is retried. This is safe, because operations are idempotent."""


@dataclass(frozen=True, slots=True, eq=False)
class Operation(Generic[Item, Result]):
    """Write operation, which the writer executes for a batch of items in one transaction.

    An operation must be idempotent. If the connection breaks during a commit, the outcome is unknown, and the
    items are written again.

    Args:
        name: name of the operation in logs.
        execute: function that writes the items in an open transaction, and returns one result per item.
        is_kept: whether the items wait while the database is unreachable. Otherwise their write fails.
        patience_s: seconds for which an item may wait to be written in a batch with others. Meanwhile, other
            operations are executed first.
    """

    name: str
    execute: Callable[[Connection, Sequence[Item]], Sequence[Result]]
    is_kept: bool = False
    patience_s: float = 0.0


class Backend(Protocol):
    """Database connection that is opened on first use."""

    async def execute(self, operation: Operation[Item, Result], items: Sequence[Item]) -> Sequence[Result]:
        """Execute `operation` in one transaction. The driver's own errors are raised."""
        ...

    async def aclose(self) -> None:
        """Close the connection, if there is one. A later `execute` opens a new one."""
        ...

    @property
    def is_open(self) -> bool: ...


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """Item to write, and the future for its result."""

    operation: Operation[Any, Any]
    item: Any
    result: "asyncio.Future[Any]"


class Writer:
    """Writer to a database with the schema, for one event loop. Close it with `aclose`, or by a context."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._backend: Backend = (
            SqliteBackend(address) if address.kind == "sqlite" else PostgresBackend(address)
        )
        self._jobs, self._patient = deque[Job](), deque[Job]()
        self._hurrying: asyncio.TimerHandle | None = None
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._idle.set()
        self._pause_s = 0.0
        self._is_closed = False
        self._worker: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def do(self, operation: Operation[Item, Result], item: Item) -> Result:
        """Write `item`, and return its result after the commit. Raise StoreUnavailable, unless `is_kept`
        waits.

        If the caller is cancelled before the write has started, nothing is written. After the start, the write may
        still complete.
        """
        return await self.post(operation, item)

    def post(self, operation: Operation[Item, Result], item: Item) -> "asyncio.Future[Result]":
        """Write `item` in the background. Return a future for the result. The caller need not await it."""
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        job = Job(operation, item, result)
        if self._is_closed:
            _fail(job, unavailable(self.address, RuntimeError("This router is stopping.")))
            return result
        self._idle.clear()
        if self._worker is None:
            self._worker = asyncio.create_task(self._work(), name="store writer")
        if operation.patience_s:
            self._patient.append(job)
            if self._hurrying is None:
                self._hurrying = asyncio.get_running_loop().call_later(operation.patience_s, self.hurry)
        else:
            self._jobs.append(job)
            self._wake.set()
        return result

    def hurry(self) -> bool:
        """Write the items that wait for a batch (`patience_s`) now, before all others.

        Return False if there are none.
        """
        if self._hurrying is not None:
            self._hurrying.cancel()
            self._hurrying = None
        if not self._patient:
            return False
        self._jobs.extendleft(reversed(self._patient))
        self._patient.clear()
        self._wake.set()
        return True

    @property
    def n_waiting(self) -> int:
        """Number of items that are not written yet."""
        return len(self._jobs) + len(self._patient)

    @property
    def is_away(self) -> bool:
        """True if the last attempt to reach the database failed."""
        return self._pause_s > 0

    async def aclose(self) -> None:
        """Write the waiting items, for at most `FLUSH_S` seconds, and close the connection."""
        self.hurry()
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._idle.wait()
        self._is_closed = True
        self.hurry()
        if self._worker is not None:
            self._worker.cancel()
            with suppress(asyncio.CancelledError):
                await self._worker
        if unwritten := [job for job in self._jobs if job.operation.is_kept]:
            logger.error("Store unreachable until shutdown; %d entries were not written", len(unwritten))
        while self._jobs:
            self._jobs.popleft().result.cancel()
        await self._backend.aclose()

    async def _work(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            while jobs := self._take():
                await self._write(jobs)
                if self._pause_s:
                    await asyncio.sleep(self._pause_s)
            if not self._patient:
                self._idle.set()

    def _take(self) -> list[Job]:
        """Return the next batch of jobs, which have the same operation. Drop cancelled jobs."""
        jobs: list[Job] = []
        others = deque[Job]()
        while self._jobs and len(jobs) < MAX_BATCH:
            job = self._jobs.popleft()
            if job.result.cancelled() and not job.operation.is_kept:
                continue
            (others if jobs and job.operation is not jobs[0].operation else jobs).append(job)
        self._jobs.extendleft(reversed(others))
        return jobs

    async def _write(self, jobs: list[Job]) -> None:
        operation = jobs[0].operation
        try:
            results = await self._execute(operation, [job.item for job in jobs])
        except asyncio.CancelledError:
            self._jobs.extendleft(reversed(jobs))
            raise
        except Exception as exc:  # noqa: BLE001 (callers get the error, and the writer continues)
            if is_away(exc) or isinstance(exc, tuple(REFUSED)):
                await self._step_back(jobs, exc)
            elif len(jobs) > 1:  # one item caused the error, and the others can still be written
                for job in jobs:
                    await self._write([job])
            else:
                _fail(jobs[0], exc)
            return
        if self._pause_s:
            self._pause_s = 0.0
            logger.warning("Store %s is reachable again", self.address.name)
        for job, result in zip(jobs, results, strict=True):
            if not job.result.done():
                job.result.set_result(result)

    async def _execute(self, operation: Operation[Item, Result], items: Sequence[Item]) -> Sequence[Result]:
        for _ in range(RETRIES):
            was_open = self._backend.is_open
            try:
                return await self._backend.execute(operation, items)
            except TRY_AGAIN:
                continue
            except (OSError, asyncpg.PostgresError, asyncpg.InterfaceError) as exc:
                if not (was_open and is_away(exc)):
                    raise
                await self._backend.aclose()  # the server may have restarted: retry once on a new connection
        return await self._backend.execute(operation, items)

    async def _step_back(self, jobs: list[Job], exc: Exception) -> None:
        """Handle an unreachable database: fail the jobs that may not wait, and queue the others again."""
        if not self._pause_s:
            logger.error("Store %s unreachable: %s: %s", self.address.name, type(exc).__name__, exc)
        self._pause_s = min(LONGEST_PAUSE_S, 2 * self._pause_s or FIRST_PAUSE_S)
        await self._backend.aclose()
        waiting = [*jobs, *self._jobs]
        self._jobs = deque(job for job in waiting if job.operation.is_kept)
        for job in waiting:
            if not job.operation.is_kept:
                _fail(job, unavailable(self.address, exc))


def _fail(job: Job, error: Exception) -> None:
    if job.operation.is_kept:  # its result may not be awaited, so log the error
        logger.error("Store operation %r failed: %s: %s", job.operation.name, type(error).__name__, error)
    if not job.result.done():
        job.result.set_exception(error)
        job.result.exception()  # mark it as retrieved: it was logged, or the caller gets it


def _execute(
    connection: Connection, operation: Operation[Item, Result], items: Sequence[Item]
) -> Sequence[Result]:
    with driver_errors(), connection.begin():
        return operation.execute(connection, items)


class PostgresBackend:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._driver: PostgresConnection | None = None
        self._engine = make_postgresql_engine(self._connect, poolclass=NullPool)
        self._connection: AsyncConnection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def execute(self, operation: Operation[Item, Result], items: Sequence[Item]) -> Sequence[Result]:
        if self._driver is not None and self._driver.is_closed():
            await self.aclose()
        if self._connection is None:
            with driver_errors():
                self._connection = await self._engine.connect()
        return await self._connection.run_sync(_execute, operation, items)

    async def aclose(self) -> None:
        connection, self._connection = self._connection, None
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.terminate()
        if connection is not None:
            await connection.invalidate()
            await connection.close()

    async def _connect(self) -> PostgresConnection:
        self._driver = await connect_postgresql(self._address, COMMAND_S)
        return self._driver


class SqliteBackend:
    def __init__(self, address: Address) -> None:
        self._engine = make_sqlite_writer(address.path)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store writer")
        self._connection: Connection | None = None

    @property
    def is_open(self) -> bool:
        return self._connection is not None

    async def execute(self, operation: Operation[Item, Result], items: Sequence[Item]) -> Sequence[Result]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, self._execute, operation, items)

    async def aclose(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._thread, self._close)

    def _execute(self, operation: Operation[Item, Result], items: Sequence[Item]) -> Sequence[Result]:
        if self._connection is None:
            with driver_errors():
                self._connection = self._engine.connect()
        return _execute(self._connection, operation, items)

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
