"""Write-behind journal: writes the events of this replica's runs to the store in the background.

The events of a run are collected for `BATCH_S` seconds and written as one row. All runs of the replica share
a transaction. While the store is unreachable, ended runs wait in memory, up to `limits.records` and
`limits.records_bytes`. A run keeps its slot and its share of the memory budget until it is written
(`serving/sessions/run_admission.py`).

A kept run is a run that outlives its client. Another replica continues it if this one ends.
"""

import asyncio
import logging
import time
from bisect import bisect_right
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import suppress

from msgspec.structs import replace

from conductor.errors import StoreUnavailable
from conductor.run.events import AnswerDelta, Event, StepRestarted, WorkDelta
from conductor.run.record import Record, RunRecords
from conductor.run.run import end_task
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.fairness import FairDict
from serving.settings.sections import LimitSettings
from serving.store.rows import Item, join_pieces, join_work, top_run
from serving.store.statements import WRITE, Written, run_write
from serving.store.store import StoreListener
from serving.store.suspended import SUSPEND, SuspendedRow, SuspendWrite
from serving.store.unflushed_run import RunSnapshot, UnflushedRun, current_records, pack, pack_items, weight

logger = logging.getLogger("podium")

BATCH_S = 0.06
"""Seconds between an event and its write."""
SLICE_S, LONGEST_SLICE_S = 0.001, 0.01
"""Seconds of packing before other tasks may run: on an idle loop, and at most."""
AT_ONCE = 256
"""Maximum runs per batch. Packing thousands takes seconds on a busy loop, but new runs come first."""
AGAIN_S = 0.5
"""Seconds between two attempts to write to an unreachable store."""
WRITTEN_WITHIN_S = 10.0
"""Maximum seconds that a response waits until the start of its run is written."""
LATE_FOR_S, LOOK_S = 5.0, 0.01
"""Maximum seconds for an overdue write, and between two checks, as a hanging store must not block answers."""
LATE_S = 0.09
"""Age of an overdue first write, a little below `limits.first_byte_s`, when the client learns of the run."""
FLUSH_S = 5.0
"""Maximum seconds for the last writes when the journal is closed."""
NOT_WRITTEN = (
    "The store is unreachable, and a background request must be stored before it is accepted. Retry later."
)


class RunJournal:
    """Journal of this replica's runs. Close it with `aclose`.

    Args:
        store: database connections of this replica.
        limits: callable that returns the current limits. They bound the number and bytes of ended runs that
            wait for an unreachable store.
        listener: receiver of new events. It receives the events of a kept run after they are written, and
            those of all other runs before.
    """

    def __init__(
        self, store: ReplicaStore, limits: Callable[[], LimitSettings], listener: StoreListener | None = None
    ) -> None:
        self._store, self._limits, self._listener = store, limits, listener or StoreListener()
        self._runs = dict[str, UnflushedRun]()
        self._ended = FairDict[str, UnflushedRun](lambda _, run: run.key_id)
        """Runs that have ended and are not written yet. They are also in `_runs`."""
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_away, self._is_behind, self._n_dropped = False, False, 0
        self._hangs = False
        """True if a client waited in vain for an overdue write, and nothing was written since."""

    @property
    def under_way(self) -> bool:
        """True if this replica has a run that has not ended."""
        return any(run.final is None for run in self._runs.values())

    @property
    def n_unwritten(self) -> int:
        return len(self._ended)

    def unwritten_bytes(self) -> Counter[str]:
        of_keys = Counter[str]()
        for run in self._ended.values():
            of_keys[run.key_id] += run.n_bytes
        return of_keys

    @property
    def is_away(self) -> bool:
        return self._is_away and any(run.is_waiting for run in self._runs.values())

    def waiting(self) -> Iterator[RunRecords]:
        """Return the runs that have ended and are not written yet."""
        return (run.final for run in self._ended.values() if run.final is not None)

    def find(self, id: str) -> RunRecords | None:
        """Return a run that has ended and is not written yet, or None."""
        run = self._runs.get(id)
        return run.final if run else None

    def has(self, id: str) -> bool:
        """Return whether the run is running here or not completely written."""
        return id in self._runs

    def begin(self, id: str, seq: int = 0, *, is_kept: bool = False) -> None:
        """Register a run that is about to start, or to continue after the item `seq` of another replica. See
        `UnflushedRun.is_kept`.
        """
        self._remove(id)
        self._runs[id] = UnflushedRun(seq, is_kept=is_kept)

    def forget(self, id: str) -> None:
        """Undo `begin`, because the run has not started."""
        self._drop(id)

    async def wait_until_written(self, id: str) -> None:
        run = self._runs.get(id)
        if run is None or (run.tried.is_set() and run.is_begun):
            return
        if not self._is_away:
            with suppress(TimeoutError):
                async with asyncio.timeout(WRITTEN_WITHIN_S):
                    await run.tried.wait()
        if not run.is_begun:
            raise StoreUnavailable(NOT_WRITTEN)

    async def wait_while_late(self, id: str) -> None:
        until_s = time.monotonic() + LATE_FOR_S
        while not (self._is_away or self._hangs) and self._is_late(id):
            self._hangs = time.monotonic() > until_s
            await asyncio.sleep(LOOK_S)

    def _is_late(self, id: str) -> bool:
        run = self._runs.get(id)
        if run is None or run.tried.is_set() or not 0 < run.first_item_s < time.monotonic() - LATE_S:
            return False
        return run.final is not None or current_records(id, run) is not None

    def note(self, record: Record, seq: int, event: Event) -> None:
        top = top_run(record.id)
        run = self._runs.get(top) or self._runs.setdefault(top, UnflushedRun())
        if isinstance(event, AnswerDelta):
            if record.id != top:
                return
            if not (run.is_kept or run.is_watched):
                run.answer.add(event)
                return
            last = run.items[-1] if run.items else None
            if last and last.run_id == top and isinstance(last.event, AnswerDelta):
                run.items[-1] = replace(last, event=join_pieces(last.event, event))
                return
        if isinstance(event, StepRestarted) and record.id == top:
            run.answer.take()
        if isinstance(event, WorkDelta) and join_work(run.items, record.id, event):
            return
        run.seq += 1
        run.first_item_s = run.first_item_s or time.monotonic()
        is_new = record.id not in run.records
        run.records[record.id] = record
        run.items.append(Item(run.seq, record.id, event, record if is_new else None))
        self._begin_writing()

    def stream_answer(self, id: str) -> None:
        """Write the answer of a run of this replica while it is streamed, from now on."""
        run = self._runs.get(id)
        if run is None or run.final is not None:
            return
        self._listener.on_watch(id)
        if run.is_kept or run.is_watched:
            return
        run.is_watched = True
        piece = run.answer.take()
        if piece is not None and id in run.records:
            self.note(run.records[id], 0, piece)

    async def put(self, records: RunRecords) -> None:
        """See `RecordStore.put`. The record is queued and written later."""
        run = self._runs.setdefault(records.record.id, UnflushedRun())
        run.final, run.final_bytes = records, weight(records)
        self._ended[records.record.id] = run
        self._begin_writing()
        if self._is_away:
            self._drop_oldest()

    async def write_suspended(self, records: RunRecords, drop_us: int, body: bytes, question: str) -> None:
        """Write a run that waits until `drop_us`. `body` is packed without redaction, `question` is redacted.

        On StoreUnavailable, the journal keeps the run.
        """
        id = records.record.id
        run = self._runs.setdefault(id, UnflushedRun())
        items = pack_items(id, run)
        row = SuspendedRow(id, drop_us, run.seq, body, question)
        write = SuspendWrite(run_write(records, tuple(run.rows), is_kept=True), row)
        written = await self._store.write(SUSPEND, write)
        run.is_begun = True
        self._drop(id)
        self._listener.on_items(id, [*run.undelivered, *items])
        if not written.is_owner:
            self._take_result(id, written)

    async def aclose(self) -> None:
        """Stop the journal. First try to write the waiting runs, for at most `FLUSH_S` seconds."""
        task, self._task = self._task, None
        if task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._idle.wait()
        await end_task(task)
        if unwritten := [id for id, run in self._runs.items() if run.is_waiting]:
            logger.error("Store unreachable at shutdown; %d runs were not written", len(unwritten))

    def _begin_writing(self) -> None:
        self._wake.set()
        self._idle.clear()
        if self._task is None:
            self._task = asyncio.create_task(self._write_on(), name="journal of runs")

    async def _write_on(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(AGAIN_S if self._is_away else 0 if self._is_behind else BATCH_S)
            self._wake.clear()
            # one run is enough to learn whether the store is back
            await self._write_next(1 if self._is_away else AT_ONCE)
            if not any(run.is_waiting for run in self._runs.values()):
                self._idle.set()

    async def _write_next(self, most: int) -> None:
        """Write up to `most` runs. This is a method of its own so that no variable of the endless loop keeps the
        last runs in memory.
        """
        waiting = self._take(most)
        n_packed = await self._write_all(waiting)
        if len(waiting) == most:  # there may be more
            self._wake.set()
        self._is_behind = n_packed == AT_ONCE

    def _take(self, most: int) -> list[tuple[str, UnflushedRun]]:
        """Return up to `most` runs with something to write. New ones come first, because after a crash only
        the store could report them. At least half are older ones, in the order of their last write.
        """
        waiting = [(id, run) for id, run in self._runs.items() if run.is_waiting]
        waiting.sort(key=lambda each: each[1].packed_s)
        n_new = bisect_right(waiting, 0.0, key=lambda each: each[1].packed_s)
        n_first = min(n_new, max(most // 2, most - (len(waiting) - n_new)))
        return [*waiting[:n_first], *waiting[n_new : n_new + most - n_first]]

    async def _write_all(self, waiting: list[tuple[str, UnflushedRun]]) -> int:
        snapshots, writes = list[RunSnapshot](), list[asyncio.Task[None]]()
        async for each in self._pack_all(waiting):
            snapshots.append(each)
            writes.append(asyncio.create_task(self._write(each)))
        results = await asyncio.gather(*writes, return_exceptions=True)
        for each, result in zip(snapshots, results, strict=True):
            if isinstance(result, BaseException):
                self._give_up(each.id, result)
        return len(snapshots)

    async def _pack_all(self, waiting: list[tuple[str, UnflushedRun]]) -> AsyncGenerator[RunSnapshot]:
        """Pack runs in slices, which block the event loop, and give other tasks as much time. If they take
        longer, the next slice is a quarter of that, so that packing still makes progress.
        """
        loop = asyncio.get_running_loop()
        began_s, slice_s = loop.time(), SLICE_S
        for id, run in waiting:
            run.packed_s = loop.time()
            try:
                snapshot, items = pack(id, run)
            except Exception as exc:  # noqa: BLE001 (a fault of one run must not stop the others)
                self._give_up(id, exc)
                continue
            if items and not run.is_kept:
                self._listener.on_items(id, items)
            if snapshot is not None:
                yield snapshot
            if (took_s := loop.time() - began_s) > slice_s:
                back_s = loop.time() + took_s
                await asyncio.sleep(0)  # on a busy loop, a timer would take three iterations
                if (left_s := back_s - loop.time()) > 0:
                    await asyncio.sleep(left_s)
                began_s = loop.time()
                slice_s = min(max(SLICE_S, (began_s - back_s) / 4), LONGEST_SLICE_S)

    def _give_up(self, id: str, error: BaseException) -> None:
        logger.error("Cannot write run %s", id, exc_info=error)
        self._drop(id)

    def _drop(self, id: str) -> None:
        if (run := self._remove(id)) is not None:
            run.tried.set()

    def _remove(self, id: str) -> UnflushedRun | None:
        self._ended.pop(id, None)
        return self._runs.pop(id, None)

    async def _write(self, snapshot: RunSnapshot) -> None:
        run = snapshot.run
        try:
            written = await self._store.write(WRITE, snapshot.write)
        except (StoreUnavailable, StoreError) as exc:
            if not self._is_away:
                logger.error("Store unreachable; runs wait in memory: %s", getattr(exc, "detail", exc))
            self._is_away = True
            self._wake.set()
            run.tried.set()
            return
        self._is_away = self._hangs = False
        run.is_begun = True
        run.tried.set()
        if self._runs.get(snapshot.id) is not run:  # suspended in the meantime, and completely written
            return
        del run.rows[: len(snapshot.write.events)]
        written_items, run.undelivered = (
            run.undelivered[: snapshot.undelivered],
            run.undelivered[snapshot.undelivered :],
        )
        if written_items:
            self._listener.on_items(snapshot.id, written_items)
        if snapshot.final is not None and run.final is snapshot.final:
            self._remove(snapshot.id)
            self._listener.on_items(snapshot.id, ())
        self._take_result(snapshot.id, written)

    def _take_result(self, id: str, written: Written) -> None:
        if written.is_watched:
            self.stream_answer(id)
        if written.is_cancelled:
            self._listener.on_cancel(id)
        if not written.is_owner:
            self._listener.on_taken_over(id)

    def _drop_oldest(self) -> None:
        """Drop ended runs above the memory limits while the store is unreachable.

        The oldest run of the key that uses the most is dropped first.
        """
        limits = self._limits()
        n_bytes = self.unwritten_bytes().total()
        while len(self._ended) > 1 and (
            (is_many := len(self._ended) > limits.records) or n_bytes > limits.records_bytes
        ):
            id = self._ended.oldest() if is_many else self._ended.oldest(self._bytes_of)
            n_bytes -= self._ended[id].n_bytes
            self._drop(id)
            self._n_dropped += 1
            if self._n_dropped.bit_count() == 1:  # at each doubling
                logger.error(
                    "Store unreachable, and unwritten runs exceed limits.records or limits.records_bytes; "
                    "%d run records were dropped so far",
                    self._n_dropped,
                )

    def _bytes_of(self, ids: Iterable[str]) -> int:
        return sum(self._ended[id].n_bytes for id in ids)
