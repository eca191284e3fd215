"""What the tables have of runs, read from them.

Knows neither what a replica has not written yet nor who runs what; writes nothing. Where nothing can have been stored,
there is nothing: no database is opened for that.
"""

import asyncio
import json
from decimal import Decimal
from typing import cast

from msgspec.structs import replace
from sqlalchemy import func, select

from conductor.run.record import RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.accounts.money import to_usd
from serving.accounts.replica_store import ReplicaStore
from serving.database.schema import (
    api_key,
    cached_answer,
    ledger,
    run,
    run_event,
    run_feedback,
    suspended_run,
    team,
)
from serving.redaction.slices import READS, turn
from serving.runs.feedback import OF_RUN, Feedback, load_feedback
from serving.runs.listing import list_rows
from serving.runs.retention import ContentDays
from serving.runs.rows import fold_items, load_items, load_records, mark_lost, now_us
from serving.runs.run_filter import RunFilter
from serving.runs.store import EventPage, Place, RunPage
from serving.shares import in_slices

PAGE_ITEMS = 200
"""Rows of events in one page."""
MOST_FOLLOWING = 2
"""Look-ups of events at once: however many follow runs, connections are left for everything else."""


class StoredRuns:
    """Reads runs; each of its methods raises `StoreUnavailable` where the store is away.

    Args:
        store: of this replica.
    """

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self._following = asyncio.Semaphore(MOST_FOLLOWING)
        self._looking_up = dict[tuple[str, int], asyncio.Task[EventPage]]()

    async def get(self, id: str) -> RunRecords | None:
        """A run, from its body or else from its events.

        Raises:
            UnreadableRecord: it is a newer version's, or damaged.
        """
        query = select(run.c.status, run.c.numbers, run.c.body).where(run.c.id == id)
        row = next(iter(await self._store.read(query)), None)
        if row is None:
            return None
        if row.body is not None:
            async with turn(READS):
                return load_records(row.body, has_content=True)
        bodies = await self._store.read(
            select(run_event.c.body).where(run_event.c.run_id == id).order_by(run_event.c.first_seq)
        )
        records = fold_items(id, load_items(id, [each.body for each in bodies]))
        if records is not None and not records.record.task.permit.stores:
            records = replace(records, has_content=False)
        records = records or load_records(row.numbers, has_content=False)
        billed_usd = await self._ledger_cost_usd(id) if row.status == "lost" else None
        return _with_status(row.status, records, billed_usd)

    async def newest(
        self, limit: int, caller: Caller, before: Place | None, run_filter: RunFilter
    ) -> RunPage:
        """A page of the list; see `RecordStore.newest`."""
        rows, end = await list_rows(self._store.read, limit, caller, before, run_filter)
        found = [
            _with_status(row.status, load_records(row.numbers, has_content=False), _usd(row.billed))
            async for row in in_slices(rows)
        ]
        return RunPage(found, end)

    async def events(self, id: str, after: int) -> EventPage:
        """See `RecordStore.events`. Who asks for what is being looked up gets that page: many who follow one run look as
        often as one, and share what they are told.
        """
        asked = (id, after)
        looking_up = self._looking_up.get(asked)
        if looking_up is None:
            looking_up = asyncio.create_task(self._look_up(id, after), name=f"events of {id} looked up")
            self._looking_up[asked] = looking_up
            looking_up.add_done_callback(lambda _: self._looking_up.pop(asked))
        return await asyncio.shield(looking_up)  # who leaves takes it from nobody

    async def _look_up(self, id: str, after: int) -> EventPage:
        query = select(run_event.c.body).where(run_event.c.run_id == id, run_event.c.last_seq > after)
        async with self._following:
            rows = await self._store.read(select(run.c.ended_us).where(run.c.id == id))
            bodies = await self._store.read(query.order_by(run_event.c.first_seq).limit(PAGE_ITEMS))
        items = [item for item in load_items(id, [each.body for each in bodies]) if item.seq > after]
        is_over = bool(rows) and rows[0].ended_us is not None and len(bodies) < PAGE_ITEMS
        return EventPage(items, is_over)

    async def newest_seq(self, id: str) -> int:
        """The number of a run's newest event that was written; 0: none was."""
        rows = await self._store.read(select(func.max(run_event.c.last_seq)).where(run_event.c.run_id == id))
        return rows[0][0] or 0

    async def paid_usd(self, id: str) -> Decimal:
        """What the ledger has for the calls of a run whose bill is known."""
        table = ledger.c
        is_known = (table.run_id == id) & (table.kind == "call") & (table.exact == 1)
        rows = await self._store.read(select(func.sum(table.amount)).where(is_known))
        return to_usd(int(rows[0][0] or 0) if rows else 0)

    async def _ledger_cost_usd(self, id: str) -> Decimal | None:
        """Return what the ledger has for a run in all; None if it has nothing."""
        rows = await self._store.read(select(func.sum(ledger.c.amount)).where(ledger.c.run_id == id))
        return _usd(rows[0][0]) if rows else None

    async def find_answer(self, owner: str, asked: str) -> str | None:
        """See `RecordStore.find_answer`."""
        table = cached_answer.c
        kept = (table.owner == owner) & (table.asked == asked) & (table.drop_us > now_us())
        row = next(iter(await self._store.read(select(table.run_id).where(kept))), None)
        return row.run_id if row else None

    async def find_waiting(self, id: str) -> RunRecords | None:
        """See `RecordStore.find_waiting`."""
        table = suspended_run.c
        query = select(table.body).where(table.run_id == id, table.drop_us >= now_us())
        row = next(iter(await self._store.read(query)), None)
        return load_records(row.body, has_content=True) if row else None

    async def feedback(self, id: str) -> list[Feedback]:
        """See `RecordStore.feedback`."""
        return [
            load_feedback(row) for row in await self._store.read(OF_RUN.where(run_feedback.c.run_id == id))
        ]

    async def asked_of(self, owner: str) -> list[tuple[str, bool]]:
        """The runs under way of a replica that somebody watches or has cancelled; with each, whether it is cancelled."""
        asked = run.c.cancel_us.is_not(None) | run.c.watch_us.is_not(None)
        query = select(run.c.id, run.c.cancel_us).where(run.c.owner == owner, run.c.ended_us.is_(None), asked)
        return [(row.id, row.cancel_us is not None) for row in await self._store.read(query)]

    async def content_days(self) -> list[ContentDays]:
        """What policies of teams and keys say of how long texts are kept."""
        found: list[ContentDays] = []
        for column, table in (("team_id", team), ("key_id", api_key)):
            query = select(table.c.id, table.c.policy).where(table.c.policy.contains("content_days"))
            said = [
                (row.id, json.loads(row.policy).get("content_days")) for row in await self._store.read(query)
            ]
            found += [ContentDays(column, id, float(days)) for id, days in said if days is not None]
        return found


def _usd(pico: Decimal | int | None) -> Decimal | None:
    """Return the sum of a column as dollars; PostgreSQL's is a decimal."""
    return None if pico is None else to_usd(int(pico))


def _with_status(status: str, records: RunRecords, billed_usd: Decimal | None) -> RunRecords:
    """Return the run with the status that no event says: lost, or ended while it waited.

    Args:
        status: of the run's row.
        records: as the events made them.
        billed_usd: what the ledger charged for a lost run; None if nothing.
    """
    if status == "lost":
        return mark_lost(records, billed_usd)
    if records.record.status == "waiting" and status in ("expired", "cancelled"):
        return replace(records, record=replace(records.record, status=cast(RunStatus, status)))
    return records
