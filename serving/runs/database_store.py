"""Records of runs in the store that all replicas share: readable on every one of them, also after the
replica that ran them has ended.
"""

import asyncio
import json
import logging
import random
import time
from asyncio import to_thread
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from decimal import Decimal
from typing import Any, cast

from sqlalchemy import Row, func, select

from conductor.errors import StoreUnavailable
from conductor.run.codec import UnreadableRecord
from conductor.run.events import Event
from conductor.run.record import Record, RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.accounts.leases import RENEW_S
from serving.accounts.money import to_usd
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
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
from serving.runs.cached_answers import KEEP_ANSWER, CachedAnswer
from serving.runs.claims import CLAIM, FREE_CLAIM, RELEASE_CLAIM, Claim
from serving.runs.feedback import GIVE_FEEDBACK, OF_RUN, Feedback, load_feedback
from serving.runs.finding import ANY, Wanted
from serving.runs.journal import BATCH_S, RunJournal
from serving.runs.listing import list_rows
from serving.runs.memory_store import page_of, place
from serving.runs.numbers import without_content
from serving.runs.retention import REMOVE, REMOVE_TEXTS, ContentDays, Retention
from serving.runs.rows import Item, fold_items, load_items, load_records, mark_lost, now_us, pack_records
from serving.runs.statements import CANCEL_RUN, LEAVE_RUN, LOSE_DEAD, TAKE_OVER, WATCH_RUN, TakeOver, Written
from serving.runs.store import EventPage, Place, RunPage, ignore
from serving.runs.suspended import (
    DROP_SUSPENDED,
    EXPIRE,
    READ_SECRETS,
    SECRETS_S,
    TAKE_SUSPENDED,
    Take,
)
from serving.runs.tool_ids import CallIds
from serving.settings.sections import LimitSettings, StoreSettings

logger = logging.getLogger("podium")

WATCH_S = 0.5
"""How often a replica with runs under way looks whether somebody asked for their end, or watches them."""
REMOVE_S = 300.0
"""How often what is not kept any more is removed."""
MOST_AT_ONCE = 50
"""Runs of replicas that ended which are taken over in one go."""
PAGE_ITEMS = 200
"""Rows of events in one page."""
MOST_FOLLOWING = 2
"""Look-ups of events at once: however many follow runs, connections are left for everything else."""


class DatabaseStore:
    """A `RecordStore` over a database; see `aclose`.

    Args:
        store: of this replica.
        limits: how many records may wait in memory while the store is away.
        settings: what is kept, and for how long.
        sweep_s: how often runs of replicas that ended are looked for.
    """

    def __init__(
        self,
        store: ReplicaStore,
        limits: Callable[[], LimitSettings],
        settings: StoreSettings | None = None,
        sweep_s: float = RENEW_S,
    ) -> None:
        self.owner = store.owner
        self.on_cancel: Callable[[str], None] = ignore
        self.on_taken: Callable[[str], None] = ignore
        self.on_orphan: Callable[[RunRecords, Decimal], None] = ignore
        self.on_stop_waiting: Callable[[RunRecords], None] = ignore
        self._store, self._sweep_s, self._settings = store, sweep_s, settings or StoreSettings()
        self.on_watched: Callable[[str], None] = ignore
        self.on_items: Callable[[str, Sequence[Item]], None] = ignore
        self._journal = RunJournal(
            store, lambda: limits().records, self._on_written, lambda of, items: self.on_items(of, items)
        )
        self._journal.on_watched = lambda of: self.on_watched(of)
        self._tasks: list[asyncio.Task[None]] = []
        self._call_ids: CallIds | None = None
        self._secrets_until_s = 0.0
        self._resuming = set[str]()
        """Runs that are being taken, and are no orphans of this replica's."""
        self._following = asyncio.Semaphore(MOST_FOLLOWING)

    def note(self, record: Record, seq: int, event: Event) -> None:
        """See `RecordStore.note`."""
        self._journal.note(record, seq, event)
        self._begin()

    def start(self) -> None:
        """Look after the runs of replicas that have ended, where anything can have been stored; else the
        first run begins it.
        """
        if self._store.address.may_hold_something:
            self._begin()

    def _begin(self) -> None:
        if not self._tasks:
            self._tasks = [
                asyncio.create_task(self._watch(), name="ends of runs"),
                asyncio.create_task(self._sweep_on(), name="sweep of runs"),
                asyncio.create_task(self._remove_on(), name="removal of old runs"),
            ]

    def keep(self, id: str, seq: int = 0) -> None:
        """See `RecordStore.keep`."""
        self._journal.begin(id, seq, is_kept=True)

    def forget(self, id: str) -> None:
        """See `RecordStore.forget`."""
        self._journal.forget(id)

    async def claim(self, claim: Claim) -> Claim:
        """See `RecordStore.claim`."""
        return await (await self._store.ledger()).writer.do(CLAIM, claim)

    async def release(self, claim: Claim) -> None:
        """See `RecordStore.release`. It is done soon, not now."""
        (await self._store.ledger()).writer.post(RELEASE_CLAIM, claim)

    async def free(self, claim: Claim) -> bool:
        """See `RecordStore.free`."""
        return await (await self._store.ledger()).writer.do(FREE_CLAIM, claim)

    async def find_answer(self, owner: str, asked: str) -> str | None:
        """See `RecordStore.find_answer`."""
        table = cached_answer.c
        kept = (table.owner == owner) & (table.asked == asked) & (table.drop_us > now_us())
        row = next(iter(await self._rows(select(table.run_id).where(kept))), None)
        return row.run_id if row else None

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """See `RecordStore.keep_answer`."""
        await (await self._store.ledger()).writer.do(KEEP_ANSWER, answer)

    async def put(self, records: RunRecords) -> None:
        """See `RecordStore.put`. It is written soon, not now."""
        self._journal.put(records)

    async def remove_texts(self, id: str) -> None:
        """See `RecordStore.remove_texts`. What was not written yet is waited for."""
        if self._journal.find(id) is not None:
            await asyncio.sleep(4 * BATCH_S)
        if self._journal.find(id) is not None:
            raise StoreUnavailable("The run was not written yet. Ask again.")
        await (await self._store.ledger()).writer.do(REMOVE_TEXTS, id)

    async def get(self, id: str) -> RunRecords | None:
        """See `RecordStore.get`."""
        if (waiting := self._journal.find(id)) is not None:
            return waiting
        query = select(run.c.status, run.c.numbers, run.c.body).where(run.c.id == id)
        row = next(iter(await self._rows(query)), None)
        if row is None:
            return None
        if row.body is not None:
            return load_records(row.body, has_content=True)
        bodies = await self._rows(
            select(run_event.c.body).where(run_event.c.run_id == id).order_by(run_event.c.first_seq)
        )
        records = fold_items(id, load_items(id, [each.body for each in bodies]))
        if records is not None and not records.record.task.permit.stores:
            records = replace(records, has_content=False)
        return _with_status(row.status, records or load_records(row.numbers, has_content=False))

    async def _get_readable(self, id: str) -> RunRecords | None:
        """As `get`; None too where the record is a newer version's, or damaged: the rest must go on all the same."""
        try:
            return await self.get(id)
        except UnreadableRecord as exc:
            logger.error("the run %s cannot be gone on with here: %s", id, exc)
            return None

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, wanted: Wanted = ANY
    ) -> RunPage:
        """See `RecordStore.newest`."""
        rows, end = await list_rows(self._rows, limit, caller, before, wanted)
        kept = [_with_status(row.status, load_records(row.numbers, has_content=False)) for row in rows]
        page = RunPage(kept, end)
        found = {records.record.id: records for records in kept}
        for records in self._journal.waiting():
            record = records.record
            if caller.sees(record.account) and wanted.matches(records) and page.covers(place(record), before):
                found[record.id] = without_content(records)
        return page_of(found.values(), limit, end)

    async def events(self, id: str, after: int) -> EventPage:
        """See `RecordStore.events`."""
        query = select(run_event.c.body).where(run_event.c.run_id == id, run_event.c.last_seq > after)
        async with self._following:
            rows = await self._rows(select(run.c.ended_us).where(run.c.id == id))
            bodies = await self._rows(query.order_by(run_event.c.first_seq).limit(PAGE_ITEMS))
        items = [item for item in load_items(id, [each.body for each in bodies]) if item.seq > after]
        is_over = bool(rows) and rows[0].ended_us is not None and len(bodies) < PAGE_ITEMS
        return EventPage(items, is_over)

    async def watch(self, id: str) -> None:
        """See `RecordStore.watch`."""
        if self._journal.has(id):
            self._journal.watch(id)
        elif self._store.address.may_hold_something:
            await (await self._store.ledger()).writer.do(WATCH_RUN, id)

    async def give_feedback(self, feedback: Feedback) -> None:
        """See `RecordStore.give_feedback`."""
        await (await self._store.ledger()).writer.do(GIVE_FEEDBACK, feedback)

    async def feedback(self, id: str) -> list[Feedback]:
        """See `RecordStore.feedback`."""
        return [load_feedback(row) for row in await self._rows(OF_RUN.where(run_feedback.c.run_id == id))]

    async def cancel(self, id: str) -> bool:
        """See `RecordStore.cancel`."""
        if not self._store.address.may_hold_something:
            return False
        writer = (await self._store.ledger()).writer
        if await writer.do(DROP_SUSPENDED, id):
            await self._tell_end(id)
            return True
        return await writer.do(CANCEL_RUN, id)

    async def _tell_end(self, id: str) -> None:
        """Of a run that waited and was ended here."""
        if (records := await self._get_readable(id)) is not None:
            self.on_stop_waiting(records)

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """See `RecordStore.suspend`."""
        body = await to_thread(pack_records, records)
        await self._journal.suspend(records, now_us() + int(wait_s * 1_000_000), body)

    async def find_waiting(self, id: str) -> RunRecords | None:
        """See `RecordStore.find_waiting`."""
        table = suspended_run.c
        query = select(table.body).where(table.run_id == id, table.drop_us >= now_us())
        row = next(iter(await self._rows(query)), None)
        return load_records(row.body, has_content=True) if row else None

    async def resume(self, id: str) -> RunRecords | None:
        """See `RecordStore.resume`."""
        writer = (await self._store.ledger()).writer
        self._resuming.add(id)
        try:
            taken = await writer.do(TAKE_SUSPENDED, Take(id, self.owner))
            if taken is None:
                return None
            self.keep(id, taken.seq)
            return load_records(taken.body, has_content=True)
        finally:
            self._resuming.discard(id)

    async def call_ids(self) -> CallIds:
        """See `RecordStore.call_ids`."""
        known, at_s = self._call_ids, time.monotonic()
        if known is not None and at_s < self._secrets_until_s:
            return known
        try:
            self._call_ids = CallIds(await (await self._store.ledger()).writer.do(READ_SECRETS, None))
        except StoreUnavailable:
            if known is None:
                raise
            return known
        self._secrets_until_s = at_s + SECRETS_S
        return self._call_ids

    async def _newest_seq(self, id: str) -> int:
        rows = await self._rows(select(func.max(run_event.c.last_seq)).where(run_event.c.run_id == id))
        return rows[0][0] or 0

    async def _paid_usd(self, id: str) -> Decimal:
        """What the ledger has for the calls of a run whose bill is known."""
        table = ledger.c
        is_known = (table.run_id == id) & (table.kind == "call") & (table.exact == 1)
        rows = await self._rows(select(func.sum(table.amount)).where(is_known))
        return to_usd(int(rows[0][0] or 0) if rows else 0)

    async def aclose(self) -> None:
        """See `RecordStore.aclose`."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._journal.aclose()

    async def sweep(self) -> int:
        """Mark the runs of replicas that ended as lost; gives how many.

        Raises:
            StoreUnavailable: the store is away.
        """
        writer = (await self._store.ledger()).writer
        for id in await writer.do(EXPIRE, self._settings.waiting_bytes_per_team):
            await self._tell_end(id)
        lost = await writer.do(LOSE_DEAD, now_us() - int(self._settings.keep_s * 1_000_000))
        if lost:
            logger.warning("%d runs were lost with the routers that ran them", lost)
        return lost

    async def take_over(self) -> int:
        """Continue the runs of replicas that ended which outlive them; gives how many.

        Raises:
            StoreUnavailable: the store is away.
        """
        writer, taken = (await self._store.ledger()).writer, 0
        mine = await writer.do(TAKE_OVER, TakeOver(self.owner, MOST_AT_ONCE))
        # Looked at before anything is waited for: what goes on here may end meanwhile, and is no orphan.
        for id in [id for id in mine if not self._journal.has(id) and id not in self._resuming]:
            records = await self._get_readable(id)
            if records is None:  # after a few replicas it is given up
                await writer.do(LEAVE_RUN, id)
                continue
            newest, paid_usd = await self._newest_seq(id), await self._paid_usd(id)
            if not self._journal.has(id) and id not in self._resuming:
                taken += 1
                self.keep(id, newest)
                self.on_orphan(records, paid_usd)
        if taken:
            logger.warning("%d runs of routers that ended go on here", taken)
        return taken

    async def remove_old(self, at_us: int | None = None) -> int:
        """Remove what the settings do not keep any more at a time, by default now; gives how many rows.

        Raises:
            StoreUnavailable: the store is away.
        """
        writer, removed = (await self._store.ledger()).writer, 0
        retention = Retention.of(self._settings, at_us, await self._content_days())
        while step := await writer.do(REMOVE, retention):
            removed += step
        return removed

    async def _content_days(self) -> list[ContentDays]:
        """What policies say of it."""
        found: list[ContentDays] = []
        for column, table in (("team_id", team), ("key_id", api_key)):
            query = select(table.c.id, table.c.policy).where(table.c.policy.contains("content_days"))
            said = [(row.id, json.loads(row.policy).get("content_days")) for row in await self._rows(query)]
            found += [ContentDays(column, id, float(days)) for id, days in said if days is not None]
        return found

    async def _remove_on(self) -> None:
        while True:
            await asyncio.sleep(REMOVE_S * random.uniform(0.5, 1.5))
            with suppress(StoreUnavailable, StoreError):
                await self.remove_old()

    async def _sweep_on(self) -> None:
        while True:
            with suppress(StoreUnavailable, StoreError):  # the writer has logged it
                await self.sweep()
                await self.take_over()
            await asyncio.sleep(self._sweep_s)

    async def _watch(self) -> None:
        told = run.c.cancel_us.is_not(None) | run.c.watch_us.is_not(None)
        query = select(run.c.id, run.c.cancel_us).where(
            run.c.owner == self.owner, run.c.ended_us.is_(None), told
        )
        while True:
            await asyncio.sleep(WATCH_S)
            if self._journal.under_way:
                with suppress(StoreUnavailable, StoreError):
                    for row in await self._rows(query):
                        self._journal.watch(row.id)
                        if row.cancel_us is not None:
                            self.on_cancel(row.id)

    def _on_written(self, id: str, written: Written) -> None:
        if written.is_watched:
            self._journal.watch(id)
        if written.is_cancelled:
            self.on_cancel(id)
        if not written.is_owner:
            self.on_taken(id)

    async def _rows(self, query: Any) -> list[Row[Any]]:
        if not self._store.address.may_hold_something:
            return []
        async with (await self._store.database()).reading() as connection:
            return list(await connection.execute(query))


def _with_status(status: str, records: RunRecords) -> RunRecords:
    """A run that was lost, or ended while it waited, says so; no event of it does."""
    if status == "lost":
        return mark_lost(records)
    if records.record.status == "waiting" and status in ("expired", "cancelled"):
        return replace(records, record=replace(records.record, status=cast(RunStatus, status)))
    return records
