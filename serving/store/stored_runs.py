"""Queries for stored runs.

This module only reads. It does not see runs that a replica has not written yet. If the store is a SQLite file
that does not exist yet, queries return nothing and do not create it.
"""

import asyncio
import json
from decimal import Decimal
from typing import Any, cast

from msgspec.structs import replace
from sqlalchemy import Row, func, select

from conductor.run.record import RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.accounts.money import to_usd
from serving.accounts.replica_store import ReplicaStore
from serving.database.clock import now_us
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
from serving.fairness import in_slices
from serving.redaction.slices import READS, turn
from serving.store.content import with_question
from serving.store.feedback import OF_RUN, Feedback, load_feedback
from serving.store.listing import list_rows
from serving.store.retention import ContentDays
from serving.store.rows import fold_items, load_items, load_records, mark_lost
from serving.store.run_costs import CostQuery, CostReport, groups_query, ledger_query, load_group, load_ledger
from serving.store.run_filter import RunFilter
from serving.store.store import EventPage, Place, RunInfo, RunPage

PAGE_ITEMS = 200
"""Maximum number of event rows in a page."""
MOST_FOLLOWING = 2
"""Maximum concurrent event queries, so that database connections are left for other work."""


class StoredRuns:
    """Reader of stored runs. Every method raises `StoreUnavailable` if the store is unreachable."""

    def __init__(self, store: ReplicaStore) -> None:
        self._store = store
        self._following = asyncio.Semaphore(MOST_FOLLOWING)
        self._looking_up = dict[tuple[str, int], asyncio.Task[EventPage]]()

    async def get(self, id: str) -> RunRecords | None:
        """Return a run from its record, or rebuilt from its events, or None. Raise UnreadableRecord for
        damaged or newer ones.
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

    async def info(self, id: str) -> RunInfo | None:
        """See `RecordStore.info`. Both databases know the length of a column's value without reading it."""
        of_events = select(func.sum(func.length(run_event.c.body))).where(run_event.c.run_id == run.c.id)
        size = func.coalesce(func.length(run.c.body), of_events.scalar_subquery(), 0).label("n_bytes")
        query = select(run.c.status, run.c.numbers, size).where(run.c.id == id)
        row = next(iter(await self._store.read(query)), None)
        if row is None:
            return None
        records = _with_status(row.status, load_records(row.numbers, has_content=False), None)
        has_content = row.n_bytes > 0 and records.record.task.permit.stores
        return RunInfo.of(records, has_content=has_content, n_bytes=int(row.n_bytes))

    async def newest(
        self, limit: int, caller: Caller, before: Place | None, run_filter: RunFilter
    ) -> RunPage:
        """See `RecordStore.newest`. The page contains only stored runs."""
        rows, end = await list_rows(self._store.read, limit, caller, before, run_filter)
        return RunPage([_read_listed(row) async for row in in_slices(rows)], end)

    async def costs(self, query: CostQuery, caller: Caller) -> CostReport:
        """See `RecordStore.costs`. The report contains only stored runs."""
        rows = await self._store.read(groups_query(query, caller))
        groups = [load_group(row, query) async for row in in_slices(rows)]
        if not caller.sees_every_run:
            return CostReport(groups)
        return CostReport(groups, load_ledger(await self._store.read(ledger_query(query, caller))))

    async def events(self, id: str, after: int) -> EventPage:
        """See `RecordStore.events`. Concurrent calls for the same page share one query."""
        key = (id, after)
        looking_up = self._looking_up.get(key)
        if looking_up is None:
            looking_up = asyncio.create_task(self._look_up(id, after), name=f"events of {id} looked up")
            self._looking_up[key] = looking_up
            looking_up.add_done_callback(lambda _: self._looking_up.pop(key))
        return await asyncio.shield(looking_up)  # a cancelled caller must not cancel the query of the others

    async def _look_up(self, id: str, after: int) -> EventPage:
        query = select(run_event.c.body).where(run_event.c.run_id == id, run_event.c.last_seq > after)
        async with self._following:
            rows = await self._store.read(select(run.c.ended_us).where(run.c.id == id))
            bodies = await self._store.read(query.order_by(run_event.c.first_seq).limit(PAGE_ITEMS))
        items = [item for item in load_items(id, [each.body for each in bodies]) if item.seq > after]
        is_over = bool(rows) and rows[0].ended_us is not None and len(bodies) < PAGE_ITEMS
        return EventPage(items, is_over)

    async def newest_seq(self, id: str) -> int:
        """Return the number of a run's newest stored event, or 0 if none is stored."""
        rows = await self._store.read(select(func.max(run_event.c.last_seq)).where(run_event.c.run_id == id))
        return rows[0][0] or 0

    async def paid_usd(self, id: str) -> Decimal:
        """Return the total cost of a run's calls in the ledger. Only calls with an exact cost count."""
        table = ledger.c
        is_known = (table.run_id == id) & (table.kind == "call") & (table.exact == 1)
        rows = await self._store.read(select(func.sum(table.amount)).where(is_known))
        return to_usd(int(rows[0][0] or 0) if rows else 0)

    async def _ledger_cost_usd(self, id: str) -> Decimal | None:
        """Return the total cost of a run in the ledger, or None if the ledger has no entry for it."""
        rows = await self._store.read(select(func.sum(ledger.c.amount)).where(ledger.c.run_id == id))
        return _usd(rows[0][0]) if rows else None

    async def find_answer(self, owner: str, request_hash: str) -> str | None:
        table = cached_answer.c
        is_current = (table.owner == owner) & (table.asked == request_hash) & (table.drop_us > now_us())
        row = next(iter(await self._store.read(select(table.run_id).where(is_current))), None)
        return row.run_id if row else None

    async def find_waiting(self, id: str) -> RunRecords | None:
        table = suspended_run.c
        query = select(table.body).where(table.run_id == id, table.drop_us >= now_us())
        row = next(iter(await self._store.read(query)), None)
        return load_records(row.body, has_content=True) if row else None

    async def feedback(self, id: str) -> list[Feedback]:
        return [
            load_feedback(row) for row in await self._store.read(OF_RUN.where(run_feedback.c.run_id == id))
        ]

    async def asked_of(self, owner: str) -> list[tuple[str, bool]]:
        """Return the active runs of a replica that clients watch or have cancelled, and which of both."""
        is_marked = run.c.cancel_us.is_not(None) | run.c.watch_us.is_not(None)
        query = select(run.c.id, run.c.cancel_us).where(
            run.c.owner == owner, run.c.ended_us.is_(None), is_marked
        )
        return [(row.id, row.cancel_us is not None) for row in await self._store.read(query)]

    async def content_days(self) -> list[ContentDays]:
        """Return the retention of texts from the policies of teams and keys."""
        retention: list[ContentDays] = []
        for column, table in (("team_id", team), ("key_id", api_key)):
            query = select(table.c.id, table.c.policy).where(table.c.policy.contains("content_days"))
            policies = [
                (row.id, json.loads(row.policy).get("content_days")) for row in await self._store.read(query)
            ]
            retention += [ContentDays(column, id, float(days)) for id, days in policies if days is not None]
        return retention


def _usd(pico: Decimal | int | None) -> Decimal | None:
    """Convert the sum of a column to dollars. PostgreSQL returns sums as `Decimal`."""
    return None if pico is None else to_usd(int(pico))


def _read_listed(row: Row[Any]) -> RunRecords:
    """Return the run of a row from `list_rows`, as lists show it."""
    records = load_records(row.numbers, has_content=False)
    return _with_status(row.status, with_question(records, row.question or ""), _usd(row.billed))


def _with_status(status: str, records: RunRecords, billed_usd: Decimal | None) -> RunRecords:
    """Return the records with the final `status` of the row, if no event reports it: lost, expired, or
    cancelled while waiting. `billed_usd` is the cost of a lost run.
    """
    if status == "lost":
        return mark_lost(records, billed_usd)
    if records.record.status == "waiting" and status in ("expired", "cancelled"):
        return replace(records, record=replace(records.record, status=cast(RunStatus, status)))
    return records
