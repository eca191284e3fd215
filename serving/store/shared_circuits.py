"""Exchange of open circuits between replicas, through the shared store.

A replica opens the circuit of a failing worker and skips the worker for a while. Twice a second, each replica
writes its open circuits, and reads those of other replicas into the health of its workers
(`serving/health.py`). No call waits for this. While the store is unreachable, a replica uses only its own
circuits.
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

from sqlalchemy import delete, not_, select
from sqlalchemy.dialects.postgresql import Insert
from sqlalchemy.exc import SQLAlchemyError

from conductor.errors import StoreUnavailable
from conductor.run.run import end_task
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.database.clock import NOW_US
from serving.database.inserts import insert_into
from serving.database.schema import circuit
from serving.health import MAX_RETRY_AFTER_S, Health, Identity, Opening

logger = logging.getLogger("podium")

LOOK_S = 0.5
"""Seconds between two exchanges. Other replicas therefore learn of an open circuit within a second."""
AWAY_S = 5.0
"""Seconds between two attempts while the store is unreachable."""
PATIENCE_S = 3.0
"""Seconds after which the store counts as unreachable."""
STALE_S = 60.0
"""Seconds for which a row outlasts its circuit. Older ones are of replicas that may have ended."""
SLACK_S = 2.0
"""Tolerance for the times in rows, in seconds, because the clock of a new database primary may differ."""
MOST_ROWS = 1000
"""Maximum number of rows to read, newest first."""
OUTAGES = (StoreUnavailable, StoreError, SQLAlchemyError, TimeoutError)
"""Errors after which this replica uses only its own circuits. `SQLAlchemyError` covers a missing table."""
IS_SOUND = circuit.c.since_us.between(0, NOW_US + int(SLACK_S * 1e6)) & circuit.c.until_us.between(
    NOW_US - int(STALE_S * 1e6), NOW_US + int((MAX_RETRY_AFTER_S + SLACK_S) * 1e6)
)
"""SQL condition for valid rows. Stale rows, and rows with impossible times, are ignored and deleted.
"""


class SharedCircuits:
    """Exchange of circuits for one replica, each within `patience_s` seconds. Close it with `aclose`."""

    def __init__(self, store: ReplicaStore, health: Health, patience_s: float = PATIENCE_S) -> None:
        self._store, self._health, self._patience_s = store, health, patience_s
        self._written = dict[Identity, Opening]()
        self._heard = set[Identity]()
        """Workers that are skipped because of another replica."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the exchange on PostgreSQL. A SQLite file is of one machine, usually with one replica."""
        if self._task is None and self._store.address.kind == "postgresql":
            self._task = asyncio.create_task(self._look_on(), name="circuits of others")

    async def aclose(self) -> None:
        """Stop the exchange, and delete the rows of this replica."""
        task, self._task = self._task, None
        await end_task(task)
        if self._written:
            with suppress(*OUTAGES):
                async with asyncio.timeout(self._patience_s):
                    await self._write({})

    async def _look_on(self) -> None:
        is_away = False
        while True:
            try:
                await self.poll()
                is_away = False
            except OUTAGES as exc:
                self._hear({})
                if not is_away:
                    logger.warning(
                        "Circuits are not shared with other routers: %s", getattr(exc, "detail", exc)
                    )
                is_away = True
            await asyncio.sleep((AWAY_S if is_away else LOOK_S) * random.uniform(0.8, 1.2))

    async def poll(self) -> None:
        """Write this replica's changed circuits, and read the open ones of others. Any error of the store is
        raised.
        """
        await self._store.database()  # outside the timeout, because the first call creates the schema
        workers = self._health.workers()
        own = {worker: health.opening for worker, health in workers.items() if health.opening is not None}
        async with asyncio.timeout(self._patience_s):
            if own != self._written:
                await self._write(own)
            elsewhere = await self._read([digest(worker) for worker in workers])
        self._hear(elsewhere)

    async def _write(self, own: Mapping[Identity, Opening]) -> None:
        """Set the rows of this replica to `own`, and delete invalid rows."""
        closed = [digest(worker) for worker in self._written if worker not in own]
        is_closed = (circuit.c.owner == self._store.owner) & circuit.c.identity.in_(closed)
        async with (await self._store.database()).writing() as connection:
            await connection.execute(delete(circuit).where(is_closed | not_(IS_SOUND)))
            for worker, opening in own.items():
                if self._written.get(worker) != opening:
                    await connection.execute(_put(self._store.owner, worker, opening))
        self._written = dict(own)

    async def _read(self, digests: list[str]) -> dict[str, list[Opening]]:
        """Return the open circuits of other replicas for the known workers, by `digest`."""
        since, until = (
            (circuit.c.since_us - NOW_US).label("since"),
            (circuit.c.until_us - NOW_US).label("until"),
        )
        is_others = (circuit.c.owner != self._store.owner) & circuit.c.identity.in_(digests)
        query = select(circuit.c.identity, since, until).where(is_others, IS_SOUND).order_by(until.desc())
        rows = await self._store.read(query.limit(MOST_ROWS))
        now_s, openings = (
            time.monotonic(),
            dict[str, list[Opening]](),
        )  # read the clock after the wait for a connection
        for row in rows:
            opening = Opening(now_s + row.since / 1e6, now_s + row.until / 1e6)
            openings.setdefault(row.identity, []).append(opening)
        return openings

    def _hear(self, elsewhere: Mapping[str, Sequence[Opening]]) -> None:
        workers = self._health.workers()
        self._heard &= workers.keys()
        for worker, health in workers.items():
            health.elsewhere = elsewhere.get(digest(worker), ())
            if health.is_open_elsewhere and worker not in self._heard:
                self._heard.add(worker)
                logger.warning(
                    "Worker %s fails at another router; skipping it here for %.1f s",
                    worker.name,
                    health.skip_s,
                )
            elif not health.is_open_elsewhere and worker in self._heard:
                self._heard.discard(worker)
                logger.warning("Worker %s is no longer reported as failing by another router", worker.name)


def _put(owner: str, worker: Identity, opening: Opening) -> Insert:
    now_s = time.monotonic()
    times = {
        "since_us": NOW_US + int((opening.since_s - now_s) * 1e6),
        "until_us": NOW_US + int((opening.until_s - now_s) * 1e6),
    }
    new = insert_into("postgresql", circuit).values(
        identity=digest(worker), owner=owner, worker=worker.name, **times
    )
    return new.on_conflict_do_update(index_elements=["identity", "owner"], set_=times)


def digest(worker: Identity) -> str:
    """Return the id of a worker in the store. It depends on the worker's name, model and address."""
    return sha256("\0".join(worker).encode()).hexdigest()[:32]
