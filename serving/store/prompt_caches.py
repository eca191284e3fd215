"""Prompt caches: which worker answered the turns of a conversation last, and how much of it the worker's provider has
cached.

The store shares the rows between replicas. A replica also has its newest rows in memory, so that it knows its own
conversations while the store is unreachable. The rows contain no texts.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from operator import attrgetter

from sqlalchemy import Connection, select
from sqlalchemy.exc import SQLAlchemyError

from conductor.errors import StoreUnavailable
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.database.clock import now_us
from serving.database.inserts import RowInsert
from serving.database.schema import prompt_cache
from serving.database.writer import Operation

logger = logging.getLogger("podium")

PATIENCE_S = 0.2
"""Seconds that a turn waits for the store."""
MOST_IDS = 10_000
"""Maximum number of ids whose rows are in memory."""
OUTAGES = (StoreUnavailable, StoreError, SQLAlchemyError, TimeoutError)
"""Errors after which only the rows in memory are used. `SQLAlchemyError` covers a missing table."""


@dataclass(frozen=True, slots=True)
class PromptCacheRow:
    """Row of the table `prompt_cache`. Its fields are the columns.

    Args:
        id: hash of the conversation's id and of its first messages.
        worker: worker that answered.
        deployment: deployment that answered, or "" if the worker has only one.
        n_messages: number of messages of the conversation in the prompt.
        tail: hash of the last user message among them.
        tokens: input tokens of the last call, as the provider reported them.
        answer_tokens: mean length of the answers so far.
        turns: number of user turns so far.
        lifetime: lifetime of the cache: `5m`, `1h`, or "" for the provider's own.
        written_us: time of the last answer, in microseconds since 1970.
        drop_us: time from which the row is ignored, in microseconds since 1970.
    """

    id: str
    worker: str
    deployment: str
    n_messages: int
    tail: str
    tokens: int
    answer_tokens: int
    turns: int
    lifetime: str
    written_us: int
    drop_us: int


COLUMNS = [field.name for field in fields(PromptCacheRow)]
VALUES = attrgetter(*COLUMNS)
PUT = RowInsert(
    prompt_cache,
    COLUMNS,
    update=[name for name in COLUMNS if name not in ("id", "worker")],
    where=lambda new: prompt_cache.c.written_us <= new.written_us,
)


def _keep(connection: Connection, rows: Sequence[PromptCacheRow]) -> list[None]:
    newest = {(row.id, row.worker): row for row in sorted(rows, key=lambda row: row.written_us)}
    PUT.execute(connection, [VALUES(row) for _, row in sorted(newest.items())])  # no deadlock
    return [None] * len(rows)


KEEP_PROMPT: Operation[PromptCacheRow, None] = Operation("prompt cache of a conversation", _keep)
"""Operation that stores a row. An older row of the same conversation and worker is replaced."""


class PromptCaches:
    """Rows of this replica in memory, and of all replicas in the store.

    Args:
        store: database connections of this replica, or None to use memory only.
    """

    def __init__(self, store: ReplicaStore | None = None) -> None:
        self._store = store
        self._rows = OrderedDict[str, dict[str, PromptCacheRow]]()
        """Rows by id and worker. The id that was used last is at the end."""
        self._writing = set[asyncio.Task[None]]()

    async def find(self, id: str) -> list[PromptCacheRow]:
        """Return the newest row of each worker, or nothing if the conversation is unknown.

        If the store does not respond within `PATIENCE_S` seconds, only the rows in memory are returned.
        """
        self._remember(await self._read(id) if self._store is not None else ())
        rows = self._rows.get(id, {})
        if rows:
            self._rows.move_to_end(id)
        at_us = now_us()
        return [row for row in rows.values() if row.drop_us > at_us]

    async def keep(self, row: PromptCacheRow, *, stores: bool = True) -> None:
        """Store a row. It is in memory at once. Wait for at most `PATIENCE_S` seconds until it is in the store.

        Args:
            row: row of the conversation's last answer.
            stores: whether the row may be stored. Otherwise it stays in memory.
        """
        self._remember([row])
        if self._store is None or self._store.is_away or not stores:
            return
        # A timeout would cancel the first write while it creates the schema.
        writing = asyncio.create_task(_write(self._store, row), name="prompt cache of a conversation")
        self._writing.add(writing)
        writing.add_done_callback(self._writing.discard)
        await asyncio.wait([writing], timeout=PATIENCE_S)

    async def _read(self, id: str) -> Iterable[PromptCacheRow]:
        assert self._store is not None
        query = select(*prompt_cache.c[*COLUMNS]).where(prompt_cache.c.id == id)
        try:
            async with asyncio.timeout(PATIENCE_S):
                return [PromptCacheRow(*row) for row in await self._store.read(query)]
        except OUTAGES as exc:
            logger.debug("Cannot read the prompt cache of a conversation: %s", getattr(exc, "detail", exc))
            return ()

    def _remember(self, rows: Iterable[PromptCacheRow]) -> None:
        for row in rows:
            of_id = self._rows.setdefault(row.id, {})
            before = of_id.get(row.worker)
            if before is None or before.written_us <= row.written_us:
                of_id[row.worker] = row
            self._rows.move_to_end(row.id)
        while len(self._rows) > MOST_IDS:
            self._rows.popitem(last=False)


async def _write(store: ReplicaStore, row: PromptCacheRow) -> None:
    try:
        await store.write(KEEP_PROMPT, row)
    except OUTAGES as exc:
        logger.debug("Cannot store the prompt cache of a conversation: %s", getattr(exc, "detail", exc))
