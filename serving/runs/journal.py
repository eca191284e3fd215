"""What happens in the runs of one replica, written to the store soon, off the way of the clients.

Everything of a run that comes together in `BATCH_S` is one row; all runs of the replica share a transaction.
While the store is away it waits here: as many runs, of as many bytes, as `limits.records` and `limits.records_bytes`
say. A run that waits keeps its place and its bytes (`places.py`).
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
from conductor.run.waiting import end_task
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import StoreError
from serving.runs.fair_dict import FairDict
from serving.runs.memory_store import weight
from serving.runs.noted import Noted, Packed, current_records, pack, pack_items
from serving.runs.rows import Item, join_pieces, join_work, top_run
from serving.runs.statements import WRITE, Written, run_write
from serving.runs.store import StoreListener
from serving.runs.suspended import SUSPEND, SuspendedRow, SuspendWrite
from serving.settings.sections import LimitSettings

logger = logging.getLogger("podium")

BATCH_S = 0.06
"""Between something that happens and its being written."""
SLICE_S, LONGEST_SLICE_S = 0.001, 0.01
"""How long runs are packed without a pause, on a loop that is idle and at most; one run more than that."""
AT_ONCE = 256
"""So many runs are packed before new ones are looked for: on a busy loop packing thousands takes seconds."""
AGAIN_S = 0.5
"""Between two attempts to write to a store that is away."""
WRITTEN_WITHIN_S = 10.0
"""How long an answer waits for the beginning of its run to be written."""
LATE_FOR_S, LOOK_S = 5.0, 0.01
"""How long a client waits for a run that is late, and between two looks whether it still is: a router that is behind catches up sooner,
and a store that hangs is no reason to show nothing.
"""
LATE_S = 0.09
"""A run of which nothing is written so long after it began is late. A little less than `limits.first_byte_s` by default, after which
its client is told of it.
"""
FLUSH_S = 5.0
"""How long a journal that is closed tries to write what it still has."""
NOT_WRITTEN = "The store cannot be reached, and a request in the background is written down before it is accepted. Try again."


class RunJournal:
    """See the module; see `aclose`.

    Args:
        store: where it is written.
        limits: how many runs that have ended, of how many bytes, may wait for a store that is away.
        listener: the replica. It gets the events of a run before they are written, and those of a run that outlives its
            replica once they are.
    """

    def __init__(
        self,
        store: ReplicaStore,
        limits: Callable[[], LimitSettings],
        listener: StoreListener | None = None,
    ) -> None:
        self._store, self._limits, self._listener = store, limits, listener or StoreListener()
        self._runs = dict[str, Noted]()
        self._ended = FairDict[str, Noted](lambda _, run: run.key_id)
        """Those of them that have ended."""
        self._wake, self._idle = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._is_away, self._is_behind, self._n_dropped = False, False, 0
        self._hangs = False
        """Whether somebody waited in vain for a run that was late, and nothing was written since."""

    @property
    def under_way(self) -> bool:
        """Whether a run of this replica has not ended."""
        return any(run.final is None for run in self._runs.values())

    @property
    def n_unwritten(self) -> int:
        """See `RecordStore.n_unwritten`."""
        return len(self._ended)

    def unwritten_bytes(self) -> Counter[str]:
        """See `RecordStore.unwritten_bytes`."""
        of_keys = Counter[str]()
        for run in self._ended.values():
            of_keys[run.key_id] += run.n_bytes
        return of_keys

    @property
    def is_away(self) -> bool:
        """See `RecordStore.is_away`."""
        return self._is_away and any(run.is_waiting for run in self._runs.values())

    def waiting(self) -> Iterator[RunRecords]:
        """Runs that have ended and are not written yet."""
        return (run.final for run in self._ended.values() if run.final is not None)

    def find(self, id: str) -> RunRecords | None:
        """One of `waiting`."""
        run = self._runs.get(id)
        return run.final if run else None

    def has(self, id: str) -> bool:
        """Whether the run is under way here, or not all written."""
        return id in self._runs

    def begin(self, id: str, seq: int = 0, *, is_kept: bool = False) -> None:
        """Expect a run.

        Args:
            id: of the run.
            seq: of its newest item that another replica wrote.
            is_kept: see `Noted.is_kept`.
        """
        self._remove(id)
        self._runs[id] = Noted(seq, is_kept=is_kept)

    def forget(self, id: str) -> None:
        """A run that was expected has not begun."""
        self._drop(id)

    async def wait_until_written(self, id: str) -> None:
        """See `RecordStore.wait_until_written`."""
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
        """See `RecordStore.wait_while_late`."""
        until_s = time.monotonic() + LATE_FOR_S
        while not (self._is_away or self._hangs) and self._is_late(id):
            self._hangs = time.monotonic() > until_s
            await asyncio.sleep(LOOK_S)

    def _is_late(self, id: str) -> bool:
        run = self._runs.get(id)
        if run is None or run.tried.is_set() or not 0 < run.noted_s < time.monotonic() - LATE_S:
            return False
        return run.final is not None or current_records(id, run) is not None

    def note(self, record: Record, seq: int, event: Event) -> None:
        """See `RecordStore.note`."""
        top = top_run(record.id)
        run = self._runs.get(top) or self._runs.setdefault(top, Noted())
        if isinstance(event, AnswerDelta):
            if record.id != top:
                return
            if not (run.is_kept or run.is_watched):
                run.said.add(event)
                return
            last = run.items[-1] if run.items else None
            if last and last.run_id == top and isinstance(last.event, AnswerDelta):
                run.items[-1] = replace(last, event=join_pieces(last.event, event))
                return
        if isinstance(event, StepRestarted) and record.id == top:
            run.said.take()
        if isinstance(event, WorkDelta) and join_work(run.items, record.id, event):
            return
        run.seq += 1
        run.noted_s = run.noted_s or time.monotonic()
        is_new = record.id not in run.records
        run.records[record.id] = record
        run.items.append(Item(run.seq, record.id, event, record if is_new else None))
        self._begin_writing()

    def watch(self, id: str) -> None:
        """See `RecordStore.watch`, for a run of this replica."""
        run = self._runs.get(id)
        if run is None or run.final is not None:
            return
        self._listener.on_watch(id)
        if run.is_kept or run.is_watched:
            return
        run.is_watched = True
        piece = run.said.take()
        if piece is not None and id in run.records:
            self.note(run.records[id], 0, piece)

    def put(self, records: RunRecords) -> None:
        """See `RecordStore.put`."""
        run = self._runs.setdefault(records.record.id, Noted())
        run.final, run.final_bytes = records, weight(records)
        self._ended[records.record.id] = run
        self._begin_writing()
        if self._is_away:
            self._drop_oldest()

    async def suspend(self, records: RunRecords, drop_us: int, body: bytes) -> None:
        """Write a run down that is to wait, with all that has happened in it.

        Args:
            records: of the run, as they may be kept.
            drop_us: until when it waits.
            body: all of it, exactly as it is.

        Raises:
            StoreUnavailable: the store is away. Nothing of it is lost here.
        """
        id = records.record.id
        run = self._runs.setdefault(id, Noted())
        items = pack_items(id, run)
        row = SuspendedRow(id, drop_us, run.seq, body)
        writer = (await self._store.ledger()).writer
        written = await writer.do(SUSPEND, SuspendWrite(run_write(records, tuple(run.rows), kept=True), row))
        run.is_begun = True
        self._drop(id)
        self._listener.on_items(id, [*run.untold, *items])
        if not written.is_owner:
            self._take_result(id, written)

    async def aclose(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        task, self._task = self._task, None
        if task is None:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_S):
                await self._idle.wait()
        await end_task(task)
        if left := [id for id, run in self._runs.items() if run.is_waiting]:
            logger.error("the store was away to the end: %d runs were not written", len(left))

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
            most = 1 if self._is_away else AT_ONCE  # one is enough to learn whether the store is back
            waiting = self._take(most)
            n_packed = await self._write_all(waiting)
            if len(waiting) == most:  # there may be more
                self._wake.set()
            self._is_behind = n_packed == AT_ONCE
            if not any(run.is_waiting for run in self._runs.values()):
                self._idle.set()

    def _take(self, most: int) -> list[tuple[str, Noted]]:
        """Runs of which something waits: first new ones, since a client may have seen the id of a run, and after a kill only what is
        written says what became of it; then those that were packed longest ago, for whom half of the places are.
        """
        waiting = [(id, run) for id, run in self._runs.items() if run.is_waiting]
        waiting.sort(key=lambda each: each[1].packed_s)
        n_new = bisect_right(waiting, 0.0, key=lambda each: each[1].packed_s)
        n_first = min(n_new, max(most // 2, most - (len(waiting) - n_new)))
        return [*waiting[:n_first], *waiting[n_new : n_new + most - n_first]]

    async def _write_all(self, waiting: list[tuple[str, Noted]]) -> int:
        packed, writes = list[Packed](), list[asyncio.Task[None]]()
        async for each in self._pack_all(waiting):
            packed.append(each)
            writes.append(asyncio.create_task(self._write(each)))
        results = await asyncio.gather(*writes, return_exceptions=True)
        for each, result in zip(packed, results, strict=True):
            if isinstance(result, BaseException):
                self._give_up(each.id, result)
        return len(packed)

    async def _pack_all(self, waiting: list[tuple[str, Noted]]) -> AsyncGenerator[Packed]:
        """Pack in slices, and leave the loop to requests for as long after each: packing waits for nobody, and
        a batch of it would hold up every answer. A busy loop comes back late, so that the next slice is a quarter of that.
        """
        loop = asyncio.get_running_loop()
        began_s, slice_s = loop.time(), SLICE_S
        for id, run in waiting:
            run.packed_s = loop.time()
            try:
                packed, items = pack(id, run)
            except Exception as exc:  # noqa: BLE001 (of this run alone, and the others are not to suffer)
                self._give_up(id, exc)
                continue
            if items and not run.is_kept:
                self._listener.on_items(id, items)
            if packed is not None:
                yield packed
            if (took_s := loop.time() - began_s) > slice_s:
                back_s = loop.time() + took_s
                await asyncio.sleep(0)  # a timer would cost a busy loop three turns
                if (left_s := back_s - loop.time()) > 0:
                    await asyncio.sleep(left_s)
                began_s = loop.time()
                slice_s = min(max(SLICE_S, (began_s - back_s) / 4), LONGEST_SLICE_S)

    def _give_up(self, id: str, error: BaseException) -> None:
        logger.error("the run %s cannot be written", id, exc_info=error)
        self._drop(id)

    def _drop(self, id: str) -> None:
        if (run := self._remove(id)) is not None:
            run.tried.set()

    def _remove(self, id: str) -> Noted | None:
        self._ended.pop(id, None)
        return self._runs.pop(id, None)

    async def _write(self, packed: Packed) -> None:
        run = packed.run
        try:
            writer = (await self._store.ledger()).writer
            written = await writer.do(WRITE, packed.write)
        except (StoreUnavailable, StoreError) as exc:
            if not self._is_away:
                logger.error("runs are not written, and kept in memory: %s", getattr(exc, "detail", exc))
            self._is_away = True
            self._wake.set()
            run.tried.set()
            return
        self._is_away = self._hangs = False
        run.is_begun = True
        run.tried.set()
        if self._runs.get(packed.id) is not run:  # it was suspended meanwhile, and all of it is written
            return
        del run.rows[: len(packed.write.events)]
        told, run.untold = run.untold[: packed.untold], run.untold[packed.untold :]
        if told:
            self._listener.on_items(packed.id, told)
        if packed.final is not None and run.final is packed.final:
            self._remove(packed.id)
            self._listener.on_items(packed.id, ())
        self._take_result(packed.id, written)

    def _take_result(self, id: str, written: Written) -> None:
        if written.is_watched:
            self.watch(id)
        if written.is_cancelled:
            self._listener.on_cancel(id)
        if not written.is_owner:
            self._listener.on_taken_over(id)

    def _drop_oldest(self) -> None:
        """Forget runs while the store is away, rather than fill the memory: the oldest of the key that has most."""
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
                    "the store is away, and its runs are more than limits.records or limits.records_bytes: "
                    "%d records of runs were dropped",
                    self._n_dropped,
                )

    def _bytes_of(self, ids: Iterable[str]) -> int:
        return sum(self._ended[id].n_bytes for id in ids)
