"""The events of one run: folded into its record, numbered, and published to whoever subscribes.

Progress events are few (a plan has a handful of steps), so they are kept and never held up. Pieces of the
answer are many: the one subscriber that owns the answer gets them all and gives back-pressure, so a slow
reader slows the worker that writes the answer and nothing grows. Other subscribers lose pieces when they
are behind, never events.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal

from conductor.model.reply import FinishReason
from conductor.run.events import (
    AnswerDelta,
    Event,
    RunCancelled,
    RunDetached,
    RunFailed,
    RunFinished,
    RunSuspended,
    Terminal,
    WorkDelta,
)
from conductor.run.fold import after
from conductor.run.record import Record

ROOM = 64
"""Pieces of the answer that may wait for one subscriber."""

Deltas = Literal["answer", "all", "none"]
"""Which pieces of the answer a subscriber gets: every one, as the answer's owner; those it is in time for;
none."""
Journal = Callable[[Record, int, Event], None]
"""Called with the record after an event, the event's number and the event, in order, before anybody reads
it. Must not raise."""


class EventsNotKept(LookupError):
    """Events between a reader's newest one and the first that a log has happened in another process. Read the
    record, and subscribe after its `seq`; or read them where the journal keeps them.
    """


class Subscription:
    """Events for one reader, the terminal one last.

    Args:
        deltas: which pieces of the answer it gets.
        on_close: called when it is closed.
        seq: the number of the newest event by now.
    """

    def __init__(self, deltas: Deltas, on_close: "Callable[[Subscription], None]", seq: int = 0) -> None:
        self._deltas: Deltas = deltas
        self._on_close = on_close
        self._events = deque[tuple[int, Event]]()
        self._waiting: asyncio.Future[None] | None = None
        """Done once there is an event."""
        self._room = asyncio.Semaphore(ROOM)
        self._is_closed = False
        self._newest = seq
        self.seq = seq
        """The number of the newest event read; a piece of the answer has that of the event before it."""

    async def next(self) -> Event:
        """The next event; not to be called after the terminal one. Cancelling the wait loses nothing."""
        await self._wait()
        return self._take()

    async def next_all(self) -> list[Event]:
        """As `next`, and whatever else has happened by then."""
        await self._wait()
        events = [self._take()]
        while self._events:
            events.append(self._take())
        return events

    async def __aiter__(self) -> AsyncGenerator[Event]:
        while True:
            event = await self.next()
            yield event
            if isinstance(event, Terminal):
                return

    async def _wait(self) -> None:
        while not self._events:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting

    def _take(self) -> Event:
        self.seq, event = self._events.popleft()
        if isinstance(event, AnswerDelta):
            self._room.release()
        return event

    def _put(self, seq: int, event: Event) -> None:
        self._events.append((seq, event))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def close(self) -> None:
        """Read no more; the writer waits for this reader no longer."""
        if not self._is_closed:
            self._is_closed = True
            self._room.release()
            self._on_close(self)

    def deliver(self, seq: int, event: Event) -> None:
        """Pass on an event that is no piece of the answer; never waits."""
        if not self._is_closed:
            self._newest = seq
            self._put(seq, event)

    async def deliver_delta(self, delta: AnswerDelta) -> None:
        """Pass on a piece of the answer: the owner is waited for, others lose it while they are behind.
        Events may overtake it while it waits, so it is numbered once there is room.
        """
        if self._is_closed or self._deltas == "none" or (self._deltas == "all" and self._room.locked()):
            return
        await self._room.acquire()
        if not self._is_closed:
            self._put(self._newest, delta)
        else:
            self._room.release()


class EventLog:
    """One run's events and their fold.

    Args:
        record: where the run begins, or is continued. What happened before it is not kept here.
        journal: told of every event.

    `answer` is its owner's subscription. A run in the background has no owner: whoever opens it closes that.
    """

    def __init__(self, record: Record, journal: Journal | None = None) -> None:
        self.record = record
        self.is_watched = False
        """Whether somebody wants to see texts while they are written."""
        self.answer = Subscription("answer", self._drop, record.seq)
        self._journal = journal
        self._first_seq = record.seq + 1
        self._events: list[tuple[int, Event]] = []
        self._subscriptions = [self.answer]

    @property
    def has_answer_begun(self) -> bool:
        """Whether a piece of the answer was shown: from then on it cannot be another answer."""
        return self.record.answer_began_s is not None

    @property
    def is_answer_seen(self) -> bool:
        """Whether its client has such a piece. A run around this one reads them as they come, whether anybody streams or
        not.
        """
        is_read = self.record.task.stream or self.record.parent is not None
        return is_read and self.has_answer_begun

    def append(self, event: Event) -> None:
        """Take note of anything but a piece of the answer; never waits."""
        self._fold(event)
        self._publish(event)

    async def append_durably(self, event: RunSuspended, write: Callable[[], Awaitable[None]] | None) -> None:
        """As `append`, and no reader is told before `write` has put the record where every process finds it.

        Raises:
            PodiumError: whatever `write` raises; nobody was told.
        """
        self._fold(event)
        if write is not None:
            await write()
        self._publish(event)

    async def append_delta(self, delta: AnswerDelta) -> None:
        """Take note of a piece of the answer; waits while the answer's owner is behind. It is not kept for
        later subscribers.
        """
        self._fold(delta)
        for subscription in tuple(self._subscriptions):
            await subscription.deliver_delta(delta)

    def end_answer(self, why: RunFailed) -> None:
        """End the answer for its owner alone, whatever the run does: another is written in place of what was shown."""
        self.answer.deliver(self.seq, why)
        self.answer.close()

    def note_work(self, piece: WorkDelta) -> None:
        """Tell the journal what the conductor or an inner step is saying; nobody else."""
        if self._journal is not None:
            self._journal(self.record, self.seq, piece)

    async def replay(self) -> None:
        """Show a run that has ended to its readers once more; nothing is folded again."""
        record = self.record
        reasoning = record.answering.reasoning if record.answering else ""
        text = record.shown
        if record.status in ("finished", "waiting") and (text or reasoning):
            await self.answer.deliver_delta(AnswerDelta(record.wall_s, text, reasoning))
        self._publish(self._ending)

    @property
    def _ending(self) -> Event:
        """The terminal event of a run that has ended."""
        record = self.record
        if record.status == "finished":
            return RunFinished(record.wall_s, record.answer, record.finish or FinishReason.STOP)
        if record.status == "failed" and record.failure is not None:
            return RunFailed(record.wall_s, record.failure)
        if record.status == "waiting":
            return RunSuspended(record.wall_s, record.pending, record.segments[-1].text)
        if record.status == "detached":
            return RunDetached(record.wall_s)
        return RunCancelled(record.wall_s, record.failure)

    def subscribe(
        self, after_seq: int | None = None, deltas: Literal["all", "none"] = "none"
    ) -> Subscription:
        """Events from now on, and those kept since `after_seq`; of a run that has ended, at least its end.

        Args:
            after_seq: the newest event that the reader knows; None: all that are kept, wherever they begin.
            deltas: which pieces of the answer it gets.

        Raises:
            EventsNotKept: some after `after_seq` are not here, or it is of another log.
        """
        known = self._first_seq - 1 if after_seq is None else after_seq
        if not self._first_seq - 1 <= known <= self.seq:
            raise EventsNotKept(
                f"Events {self._first_seq} to {self.seq} are kept here; {known} was the last one read."
            )
        subscription = Subscription(deltas, self._drop, known)
        kept = [(seq, event) for seq, event in self._events if seq > known]
        if not kept and self.record.status != "running":
            kept = [(self.seq, self._ending)]
        for seq, event in kept:
            subscription.deliver(seq, event)
        self._subscriptions.append(subscription)
        return subscription

    def _drop(self, subscription: Subscription) -> None:
        self._subscriptions = [each for each in self._subscriptions if each is not subscription]

    def _publish(self, event: Event) -> None:
        self._events.append((self.seq, event))
        for subscription in self._subscriptions:
            subscription.deliver(self.seq, event)

    @property
    def seq(self) -> int:
        """The number of the newest event, from 1."""
        return self.record.seq

    def _fold(self, event: Event) -> None:
        self.record = after(self.record, event)
        if self._journal is not None:
            self._journal(self.record, self.seq, event)
