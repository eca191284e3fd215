"""Circuits that router replicas tell each other of, through the store that all of them share.

Twice a second, beside the calls: what has opened or closed here is written down, and what others have open is read into
the health of the workers, which decides what of it holds here. No call waits for it: while the store is away, nothing of
others is known.
"""

import asyncio
import logging
import random
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from hashlib import sha256

from sqlalchemy import BigInteger, ColumnElement, delete, literal_column, not_, select
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.exc import SQLAlchemyError

from conductor.errors import StoreUnavailable
from conductor.run.waiting import end_task
from serving.accounts.postgresql import NOW_US
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.database.schema import circuit
from serving.health import MOST_ASKED_REST_S, Health, Identity, Opening

logger = logging.getLogger("podium")

LOOK_S = 0.5
"""Between two looks, so that others know within a second."""
AWAY_S = 5.0
"""Between two looks at a store that is away."""
PATIENCE_S = 3.0
"""A store that takes longer for a look is away."""
STALE_S = 60.0
"""So long after its owner wanted to try again a row is still believed: it was idle since, or is gone."""
SLACK_S = 2.0
"""How far a row may lie outside what a replica writes: the clock of a new primary differs."""
MOST_ROWS = 1000
"""So many rows, the newest, are read."""
OUTAGES = (StoreUnavailable, StoreError, SQLAlchemyError, TimeoutError)
"""Also where somebody has removed the table: circuits are this replica's own then."""
NOW: ColumnElement[int] = literal_column(NOW_US, BigInteger)
IS_SOUND = circuit.c.since_us.between(0, NOW + int(SLACK_S * 1e6)) & circuit.c.until_us.between(
    NOW - int(STALE_S * 1e6), NOW + int((MOST_ASKED_REST_S + SLACK_S) * 1e6)
)
"""What is neither stale nor anything that a replica writes is not believed, and removed."""


class SharedCircuits:
    """One replica's part in telling; see `aclose`.

    Args:
        store: of this replica.
        health: of its workers.
        patience_s: see `PATIENCE_S`.
    """

    def __init__(self, store: ReplicaStore, health: Health, patience_s: float = PATIENCE_S) -> None:
        self._store, self._health, self._patience_s = store, health, patience_s
        self._written = dict[Identity, Opening]()
        self._heard = set[Identity]()
        """Workers that are left alone on another's word."""
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Look from now on. A SQLite file is of one machine, which has one way to a worker and as a rule one router."""
        if self._task is None and self._store.address.kind == "postgresql":
            self._task = asyncio.create_task(self._look_on(), name="circuits of others")

    async def aclose(self) -> None:
        """Look no more, and take back what is open here."""
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
                await self.look()
                is_away = False
            except OUTAGES as exc:
                self._hear({})
                if not is_away:
                    logger.warning("circuits are not shared: %s", getattr(exc, "detail", exc))
                is_away = True
            await asyncio.sleep((AWAY_S if is_away else LOOK_S) * random.uniform(0.8, 1.2))

    async def look(self) -> None:
        """Write down what has changed here, and learn what others have open.

        Raises:
            StoreUnavailable, StoreError, SQLAlchemyError, TimeoutError: the store is away, or broken.
        """
        await self._store.database()  # the first time its schema is made, which takes as long as it takes
        workers = self._health.workers()
        own = {worker: health.opening for worker, health in workers.items() if health.opening is not None}
        async with asyncio.timeout(self._patience_s):
            if own != self._written:
                await self._write(own)
            elsewhere = await self._read([digest(worker) for worker in workers])
        self._hear(elsewhere)

    async def _write(self, own: Mapping[Identity, Opening]) -> None:
        """Make the rows of this replica those of `own`, and remove whatever nobody believes."""
        closed = [digest(worker) for worker in self._written if worker not in own]
        is_closed = (circuit.c.owner == self._store.owner) & circuit.c.identity.in_(closed)
        async with (await self._store.database()).writing() as connection:
            await connection.execute(delete(circuit).where(is_closed | not_(IS_SOUND)))
            for worker, opening in own.items():
                if self._written.get(worker) != opening:
                    await connection.execute(_put(self._store.owner, worker, opening))
        self._written = dict(own)

    async def _read(self, known: list[str]) -> dict[str, list[Opening]]:
        """What others have open of these workers."""
        since, until = (circuit.c.since_us - NOW).label("since"), (circuit.c.until_us - NOW).label("until")
        is_others = (circuit.c.owner != self._store.owner) & circuit.c.identity.in_(known)
        query = select(circuit.c.identity, since, until).where(is_others, IS_SOUND).order_by(until.desc())
        rows = await self._store.read(query.limit(MOST_ROWS))
        now_s, found = time.monotonic(), dict[str, list[Opening]]()  # after a connection was waited for
        for row in rows:
            opening = Opening(now_s + row.since / 1e6, now_s + row.until / 1e6)
            found.setdefault(row.identity, []).append(opening)
        return found

    def _hear(self, elsewhere: Mapping[str, Sequence[Opening]]) -> None:
        workers = self._health.workers()
        self._heard &= workers.keys()
        for worker, health in workers.items():
            health.elsewhere = elsewhere.get(digest(worker), ())
            if health.is_open_elsewhere and worker not in self._heard:
                self._heard.add(worker)
                logger.warning(
                    "%s fails at another router, and is left alone here for %.1f s",
                    worker.name,
                    health.rest_s,
                )
            elif not health.is_open_elsewhere and worker in self._heard:
                self._heard.discard(worker)
                logger.warning("%s is no more left alone on another router's word", worker.name)


def _put(owner: str, worker: Identity, opening: Opening) -> Insert:
    """The statement that writes a row, in the place of an earlier one."""
    now_s = time.monotonic()
    times = {
        "since_us": NOW + int((opening.since_s - now_s) * 1e6),
        "until_us": NOW + int((opening.until_s - now_s) * 1e6),
    }
    new = insert(circuit).values(identity=digest(worker), owner=owner, worker=worker.name, **times)
    return new.on_conflict_do_update(index_elements=["identity", "owner"], set_=times)


def digest(worker: Identity) -> str:
    """What a worker is called in the store: one with another model or address is another one."""
    return sha256("\0".join(worker).encode()).hexdigest()[:32]
