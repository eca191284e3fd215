"""Run store in the database that all replicas share.

Every replica can read a record, even after the replica that wrote it has ended.

The store combines the unwritten runs of this replica (`journal.py`) with the stored ones (`stored_runs.py`).
It also periodically takes over or ends the runs of replicas that have ended.
"""

import asyncio
import logging
import random
import time
from asyncio import to_thread
from collections.abc import Callable
from contextlib import suppress

from conductor.errors import Overloaded, StoreUnavailable
from conductor.run.codec import UnreadableRecord
from conductor.run.events import Event
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.accounts.hold_statements import RENEW_S
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.database.clock import now_us
from serving.settings.sections import LimitSettings, StoreSettings
from serving.store.content import for_list, kept_question
from serving.store.feedback import GIVE_FEEDBACK, Feedback
from serving.store.idempotency import CLAIM, FREE_CLAIM, KEEP_ANSWER, RELEASE_CLAIM, CachedAnswer, Claim
from serving.store.journal import BATCH_S, RunJournal
from serving.store.memory_store import page_of, place
from serving.store.retention import REMOVE, REMOVE_TEXTS, Retention
from serving.store.rows import ENDED, load_records, pack_records, storable
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.signing_secrets import READ_SECRETS, SECRETS_S
from serving.store.statements import (
    CANCEL_RUN,
    DEFER_RUN,
    LEAVE_RUN,
    LOSE_DEAD,
    TAKE_OVER,
    WATCH_RUN,
    TakeOver,
)
from serving.store.store import Place, RunInfo, RunPage, StoreListener
from serving.store.stored_runs import StoredRuns
from serving.store.suspended import DROP_SUSPENDED, EXPIRE, TAKE_SUSPENDED, Take
from serving.store.tool_ids import CallIds

logger = logging.getLogger("podium")

WATCH_S = 0.5
"""Seconds between two polls for requests to cancel or watch a run, while runs are active."""
REMOVE_S = 300.0
"""Average seconds between two removals of old data."""
MOST_AT_ONCE = 50
"""Maximum number of runs that one sweep takes over."""


class DatabaseStore(RunJournal, StoredRuns):
    """`RecordStore` in a database. Close it with `aclose`.

    Runs of this replica that are not written yet are read from its journal, and all others from the database.

    Args:
        limits: callable that returns the current limits. They bound the number and bytes of records that wait
            in memory while the database is unreachable.
        sweep_s: seconds between two searches for runs of replicas that have ended.
    """

    def __init__(
        self,
        store: ReplicaStore,
        limits: Callable[[], LimitSettings],
        settings: StoreSettings | None = None,
        sweep_s: float = RENEW_S,
        listener: StoreListener | None = None,
    ) -> None:
        RunJournal.__init__(self, store, limits, listener)
        StoredRuns.__init__(self, store)
        self.owner = store.owner
        self._sweep_s, self._settings = sweep_s, settings or StoreSettings()
        self._tasks: list[asyncio.Task[None]] = []
        self._call_ids: CallIds | None = None
        self._secrets_until_s = 0.0
        self._taking_over = asyncio.Lock()
        self._begun = set[str]()
        """Runs that started here during a `take_over`, which must not take them over, even if ended."""

    def note(self, record: Record, seq: int, event: Event) -> None:
        super().note(record, seq, event)
        self._begin()

    def start(self) -> None:
        """See `RecordStore.start`. If the database does not exist yet, the first run starts the sweep."""
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
        self.begin(id, seq, is_kept=True)
        if self._taking_over.locked():
            self._begun.add(id)

    async def claim(self, claim: Claim) -> Claim:
        return await self._store.write(CLAIM, claim)

    async def release(self, claim: Claim) -> None:
        """See `RecordStore.release`. The release is queued and written later."""
        (await self._store.ledger()).writer.post(RELEASE_CLAIM, claim)

    async def free(self, claim: Claim) -> bool:
        return await self._store.write(FREE_CLAIM, claim)

    async def keep_answer(self, answer: CachedAnswer) -> None:
        await self._store.write(KEEP_ANSWER, answer)

    async def remove_texts(self, id: str) -> None:
        """See `RecordStore.remove_texts`. Waits briefly for a run that is not written yet."""
        if self.find(id) is not None:
            await asyncio.sleep(4 * BATCH_S)
        if self.find(id) is not None:
            raise StoreUnavailable("The run is not stored yet. Retry.")
        await self._store.write(REMOVE_TEXTS, id)

    async def get(self, id: str) -> RunRecords | None:
        return self.find(id) or await super().get(id)

    async def info(self, id: str) -> RunInfo | None:
        records = self.find(id)
        return RunInfo.of(records, has_content=records.has_content) if records else await super().info(id)

    async def _get_readable(self, id: str) -> RunRecords | None:
        """Return a run, or None if it is not stored or unreadable. One bad record must not stop a sweep."""
        try:
            return await self.get(id)
        except UnreadableRecord as exc:
            logger.error("Cannot read run %s: %s", id, exc)
            return None

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        page = await super().newest(limit, caller, before, run_filter)
        runs = {records.record.id: records for records in page.runs}
        for records in self.waiting():
            record = records.record
            if (
                caller.sees(record.account)
                and run_filter.matches(records)
                and page.covers(place(record), before)
            ):
                runs[record.id] = for_list(records)
        return page_of(runs.values(), limit, page.end)

    async def watch(self, id: str) -> None:
        if self.has(id):
            self.stream_answer(id)
        elif self._store.address.may_hold_something:
            await self._store.write(WATCH_RUN, id)

    async def give_feedback(self, feedback: Feedback) -> None:
        await self._store.write(GIVE_FEEDBACK, feedback)

    async def cancel(self, id: str) -> bool:
        if not self._store.address.may_hold_something:
            return False
        if await self._store.write(DROP_SUSPENDED, id):
            await self._tell_end(id)
            return True
        return await self._store.write(CANCEL_RUN, id)

    async def _tell_end(self, id: str) -> None:
        """Notify the listener that this replica has ended a run that waited."""
        if (records := await self._get_readable(id)) is not None:
            self._listener.on_wait_end(records)

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        body = await to_thread(pack_records, records)
        question = storable(kept_question(records.record.task))
        await self.write_suspended(records, now_us() + int(wait_s * 1_000_000), body, question)

    async def resume(self, id: str) -> RunRecords | None:
        resumed = await self._store.write(TAKE_SUSPENDED, Take(id, self.owner))
        if resumed is None:
            return None
        self.keep(id, resumed.seq)
        return load_records(resumed.body, has_content=True)

    async def call_ids(self) -> CallIds:
        call_ids, at_s = self._call_ids, time.monotonic()
        if call_ids is not None and at_s < self._secrets_until_s:
            return call_ids
        try:
            self._call_ids = CallIds(await self._store.write(READ_SECRETS, None))
        except StoreUnavailable:
            if call_ids is None:
                raise
            return call_ids
        self._secrets_until_s = at_s + SECRETS_S
        return self._call_ids

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await super().aclose()

    async def sweep(self) -> int:
        """End suspended runs that waited too long. Mark runs of dead replicas as lost, except those for
        `take_over`. Return the number of lost runs.
        """
        for id in await self._store.write(EXPIRE, self._settings.waiting_bytes_per_team):
            await self._tell_end(id)
        lost = await self._store.write(LOSE_DEAD, now_us() - int(self._settings.keep_s * 1_000_000))
        if lost:
            logger.warning("Marked %d runs of stopped routers as lost", lost)
        return lost

    async def take_over(self) -> int:
        """Take over and continue runs of ended replicas that outlive their clients. Return their number."""
        async with self._taking_over:
            self._begun.clear()
            return await self._take_orphans()

    async def _take_orphans(self) -> int:
        n_taken = n_deferred = 0
        for id in await self._store.write(TAKE_OVER, TakeOver(self.owner, MOST_AT_ONCE)):
            try:
                n_taken += await self._take_orphan(id)
            except Overloaded:  # a later sweep takes it over, here or on a replica with more memory
                await self._store.write(DEFER_RUN, id)
                n_deferred += 1
            except UnreadableRecord as exc:  # another replica may be able to read it
                logger.error("Cannot read run %s: %s", id, exc)
                await self._store.write(LEAVE_RUN, id)
        if n_taken or n_deferred:
            message = (
                "Continuing %d runs of stopped routers; %d more wait for memory (limits.max_running_bytes)"
            )
            logger.warning(message, n_taken, n_deferred)
        return n_taken

    async def _take_orphan(self, id: str) -> bool:
        """Load a run of an ended replica, and continue it unless it is here. Return whether it is continued."""
        if self._is_here(id):
            return False
        async with self._listener.loading_orphan(id):
            records = await self.get(id)
            newest, paid_usd = await self.newest_seq(id), await self.paid_usd(id)
            if (
                records is None or records.record.status in ENDED or self._is_here(id)
            ):  # ended here since the query
                return False
            self.keep(id, newest)
            self._listener.on_orphan(records, paid_usd)
        return True

    def _is_here(self, id: str) -> bool:
        """Return whether this replica handles the run, so that it must not be taken over.

        The run may be starting, running, not completely written, or just ended.
        """
        return id in self._begun or self.has(id) or self._listener.owns(id)

    async def remove_old(self, at_us: int | None = None) -> int:
        """Remove the data whose retention has expired at `at_us`, by default now. Return the number of rows."""
        removed = 0
        retention = Retention.of(self._settings, at_us, await self.content_days())
        while step := await self._store.write(REMOVE, retention):
            removed += step
        return removed

    async def _remove_on(self) -> None:
        while True:
            await asyncio.sleep(REMOVE_S * random.uniform(0.5, 1.5))
            with suppress(StoreUnavailable, StoreError):
                await self.remove_old()

    async def _sweep_on(self) -> None:
        while True:
            with suppress(StoreUnavailable, StoreError):  # logged by the writer
                await self.sweep()
                await self.take_over()
            await asyncio.sleep(self._sweep_s)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            if self.under_way:
                with suppress(StoreUnavailable, StoreError):
                    for id, is_cancelled in await self.asked_of(self.owner):
                        self.stream_answer(id)
                        if is_cancelled:
                            self._listener.on_cancel(id)
