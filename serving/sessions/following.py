"""Following of a run through the store: its stored events become a `Run` for another client.

The run may have ended, or may be active on any replica. The client gets the events and the answer from the
beginning. A client that follows a run is called a reader.

A run that calls the client's tools consists of segments. Each segment ends when the run waits for tool
results, or when the run ends.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager

from msgspec.structs import replace

from conductor.errors import BadTask, Interrupted, StoreUnavailable
from conductor.model.failure import Failure
from conductor.run.event_log import EventLog
from conductor.run.events import (
    AnswerDelta,
    ResultsGiven,
    RunDetached,
    RunFailed,
    RunFinished,
    RunResumed,
    StepRestarted,
    WorkDelta,
)
from conductor.run.fold import after
from conductor.run.partial_answer import other_answer
from conductor.run.record import Account, RunRecords
from conductor.run.run import Run, end_task
from serving.sessions.run_admission import Loading
from serving.store.idempotency import Claim
from serving.store.rows import Item
from serving.store.store import RecordStore

POLL_S = 0.1
LOOKS = 10
"""Maximum number of polls for the events of a run that has ended."""
AWAY_S = 1.0
"""Seconds between two polls while the store is unreachable."""
ASK_S = 2.0
"""Seconds between two checks that the replica that claimed the run is alive."""
BEGINS_S = 60.0
"""Maximum seconds that a reader waits until a live replica starts the run."""


@asynccontextmanager
async def follow(store: RecordStore, claim: Claim, loading: Loading, account: Account) -> AsyncGenerator[Run]:
    """Open the run of an earlier request for one more reader. Raise Interrupted if it was lost, BadTask if
    its texts are gone, or Overloaded if there is no memory for them.
    """
    id = claim.run_id
    if not await wait_until_begun(store, claim):
        raise Interrupted(
            "The earlier request with the same content has not started a run. Retry.", retryable=True
        )
    info = await store.info(id)
    if info is None or info.status in ("running", "detached"):
        async with _open_pump(store, id) as run:
            yield run
        return
    if info.status == "lost":
        raise run_lost_error()
    async with loading(id, account):
        records = await store.get(id)
    if records is None or not records.has_content:
        message = "The answer to this Idempotency-Key is no longer stored. Use another key."
        raise BadTask(message, param="Idempotency-Key")
    async with follow_segment(store, records, -1) as run:  # later segments belong to later requests
        yield run


async def wait_until_begun(store: RecordStore, claim: Claim) -> bool:
    """Wait until an earlier run has started. If it will not start, release its claim and return False. Raise
    Interrupted after `BEGINS_S`.
    """
    loop = asyncio.get_running_loop()
    began_s = asked_s = loop.time()
    while await store.info(claim.run_id) is None and not (await store.events(claim.run_id, 0)).items:
        if loop.time() - asked_s > ASK_S:
            asked_s = loop.time()
            if await store.free(claim):
                return False
            if asked_s - began_s > BEGINS_S:
                raise Interrupted("The run has not started yet. Retry.", retryable=True)
        await asyncio.sleep(POLL_S)
    return True


@asynccontextmanager
async def follow_segment(store: RecordStore, records: RunRecords, segment: int) -> AsyncGenerator[Run]:
    """Open the segment after `segment` (-1: the first) for another reader. Raise Interrupted if the run was
    lost.

    It starts with the client's tool results, and ends when the run waits again or ends.
    """
    record = records.record
    if segment + 1 < len(record.segments):
        last_segment = replace(record.segments[segment + 1], given=None)
        segments = (*record.segments[: segment + 1], last_segment)
        record = replace(record, status="waiting", segments=segments)
    elif record.status in ("running", "detached"):
        async with _open_pump(store, record.id, n_given=segment + 1) as run:
            yield run
        return
    if record.status == "lost":
        raise run_lost_error()
    log = EventLog(record)
    log.replay()
    yield Run(log, records.inner)


@asynccontextmanager
async def retell(store: RecordStore, id: str, segment: int) -> AsyncGenerator[Run]:
    """Open a segment from the stored events, even of an ended run. Raise BadTask if they are no longer
    stored.

    Every reader gets the same events and parts. The run must outlive its client, because only such events
    include the answer.
    """
    info = await store.info(id)
    if info is not None and info.status not in ("running", "detached", "waiting"):
        await _check_kept(store, id)
    async with _open_pump(store, id, n_given=segment) as run:
        yield run


async def _check_kept(store: RecordStore, id: str) -> None:
    """Wait briefly until the events of an ended run are stored. Raise BadTask if they are not."""
    for _ in range(LOOKS):
        items = (await store.events(id, 0)).items
        if items and items[0].record is not None:
            return
        await asyncio.sleep(POLL_S)
    message = "The events of this run are no longer stored. Request the answer without `stream`."
    raise BadTask(message, param="stream")


@asynccontextmanager
async def _open_pump(store: RecordStore, id: str, n_given: int = 0) -> AsyncGenerator[Run]:
    pump = Pump(store, id, n_given)
    run = await pump.first()
    task = asyncio.create_task(pump.run_on(run), name=f"run {id} followed")
    try:
        yield run
    finally:
        run.answer.close()
        await end_task(task)


def run_lost_error() -> Interrupted:
    """Return the error for readers of a lost run: its replica has ended, and no other replica continues it."""
    return Interrupted("The run was lost because its server stopped. Retry with another Idempotency-Key.")


class AnswerDiffers(Exception):
    """An answer that is written again differs from the answer that readers have received."""

    def __init__(self, answer: AnswerDelta) -> None:
        super().__init__("the repeated answer differs")
        self.answer = answer


class RetoldAnswer:
    """Filter for answers that a restart or another replica may repeat, so that readers get each part once."""

    def __init__(self) -> None:
        self._old = self._new = AnswerDelta(0.0, "")
        """Answer that readers have received, and answer that was written since the last restart."""

    @property
    def n_chars(self) -> int:
        """Number of characters that this object keeps in memory."""
        old, new = self._old, self._new
        texts = {id(each): len(each) for each in (old.text, old.reasoning, new.text, new.reasoning)}
        return sum(texts.values())

    def begin_again(self) -> None:
        """Prepare for the same answer, which is written again from the beginning."""
        self._new = AnswerDelta(0.0, "")

    def correct(self, end: RunFinished) -> AnswerDelta | None:
        """Return the final answer if readers have received more text than it contains. Otherwise return None."""
        is_more = len(self._old.text) > len(end.answer) and self._old.text.startswith(end.answer)
        return AnswerDelta(end.at_s, end.answer, self._new.reasoning) if is_more else None

    def begin_next(self) -> None:
        """Prepare for the answer of the next segment."""
        self._old = self._new = AnswerDelta(0.0, "")

    def add(self, piece: AnswerDelta) -> AnswerDelta | None:
        """Add a part of the answer, and return what is new to readers, or None.

        If it differs from what they have, raise AnswerDiffers, and compare the new answer from now on.
        """
        new = AnswerDelta(piece.at_s, self._new.text + piece.text, self._new.reasoning + piece.reasoning)
        text, reasoning = _rest(self._old.text, new.text), _rest(self._old.reasoning, new.reasoning)
        self._new = new
        if text is None or reasoning is None:
            self._old = new
            raise AnswerDiffers(new)
        if not (text or reasoning):
            return None
        self._old = AnswerDelta(
            0.0, new.text if text else self._old.text, new.reasoning if reasoning else self._old.reasoning
        )  # references to the same texts instead of copies
        return AnswerDelta(piece.at_s, text, reasoning, piece.logprobs if text == piece.text else ())


class Pump:
    """Copies the events of a run from the store to the event log of a reader.

    Args:
        n_given: number of segments to skip. Each ended with the client's tool results.
    """

    def __init__(self, store: RecordStore, id: str, n_given: int = 0) -> None:
        self._store, self._id, self._n_skipped = store, id, n_given
        self._after = 0
        self._items: list[Item] = []
        self._log: EventLog | None = None
        self._answer = RetoldAnswer()

    async def first(self) -> Run:
        """Wait for the first event after the skipped segments, and return the run."""
        while not self._items:
            self._items = self._without_restarted((await self._store.events(self._id, 0)).items)
            if not self._items:
                await asyncio.sleep(POLL_S)
        record = self._items[0].record
        assert record is not None, "the first event of a run has its record"
        self._log = EventLog(record)
        while self._n_skipped:
            await self._skip(self._log)
        return Run(self._log)

    async def _skip(self, log: EventLog) -> None:
        while self._items and self._n_skipped:
            item = self._items.pop(0)
            self._after = item.seq
            if item.run_id == self._id:
                await self._publish(log, item)
        if self._n_skipped:
            self._items = self._without_restarted((await self._store.events(self._id, self._after)).items)
            await asyncio.sleep(0 if self._items else POLL_S)

    async def run_on(self, run: Run) -> None:
        """Copy events until the run ends or waits for tool results."""
        assert self._log is not None, "first() was called"
        while True:
            for item in self._items:
                self._after = item.seq
                if isinstance(item.event, RunFinished) and item.run_id == self._id:
                    info = await self._store.info(self._id)
                    whole = await self._store.get(self._id) if info is not None and info.has_inner else None
                    run.inner += [Run(EventLog(record)) for record in whole.inner.values()] if whole else []
                if item.run_id == self._id:
                    await self._publish(self._log, item)
                if not self._n_skipped and self._log.record.status not in ("running", "detached"):
                    return None  # the terminal event is the last one
            try:
                page = await self._store.events(self._id, self._after)
            except StoreUnavailable:  # the run and its readers continue
                self._items = []
                await asyncio.sleep(AWAY_S)
                continue
            self._items = self._without_restarted(page.items)
            if page.is_over and not page.items:  # no replica continues it
                return self._log.append(RunFailed(self._log.record.wall_s, Failure.of(run_lost_error())))
            if not page.items:
                await asyncio.sleep(POLL_S)

    def _without_restarted(self, items: Sequence[Item]) -> list[Item]:
        """Return the items without the parts of an answer that a restarted step writes again."""
        remaining, begin = list[Item](), 0
        for item in items:
            if isinstance(item.event, ResultsGiven):
                begin = len(remaining)
            elif isinstance(item.event, StepRestarted) and item.run_id == self._id:
                remaining[begin:] = [
                    each for each in remaining[begin:] if not isinstance(each.event, AnswerDelta)
                ]
            remaining.append(item)
        return remaining

    async def _publish(self, log: EventLog, item: Item) -> None:
        match item.event:
            case ResultsGiven():
                self._n_skipped = max(self._n_skipped - 1, 0)
                self._answer.begin_next()
                log.record = item.record or after(log.record, item.event)
            case _ if self._n_skipped:
                log.record = item.record or after(log.record, item.event)
            case AnswerDelta():
                await self._publish_piece(log, item.event)
            case WorkDelta():
                pass  # the text of a step is only for observers, not for readers
            case RunDetached():
                pass  # another replica continues the run, and the readers stay
            case StepRestarted():
                self._answer.begin_again()
                log.append(item.event)
            case RunFinished() if self._answer.correct(item.event):
                log.append(RunFailed(item.event.at_s, Failure.of(other_answer())))
            case RunResumed():
                self._answer.begin_again()
                log.record = replace(item.record or log.record, answer_began_s=log.record.answer_began_s)
            case _ if item.record is None:
                log.append(item.event)
            case _:
                pass  # the record of the first item already includes its event

    async def _publish_piece(self, log: EventLog, piece: AnswerDelta) -> None:
        try:
            new = self._answer.add(piece)
        except AnswerDiffers:
            return log.append(RunFailed(piece.at_s, Failure.of(other_answer())))
        if new is not None:
            await log.append_piece(new)
        return None


def _rest(old: str, new: str) -> str | None:
    """Return what `new` adds to `old`, or None if the texts differ."""
    if new.startswith(old):
        return new[len(old) :]
    return "" if old.startswith(new) else None
