"""The events of one run: folded into its record, numbered, and published to whoever subscribes.

Progress events are few (a plan has a handful of steps), so they are kept and never held up. Pieces of the
answer are many: the one subscriber that owns the answer gets them all and gives back-pressure, so a slow
reader slows the worker that writes the answer and nothing grows. Other subscribers lose pieces when they
are behind, never events.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Literal

from conductor.model.worker import FinishReason
from conductor.run.events import AnswerDelta, Event, RunCancelled, RunFailed, RunFinished, Terminal
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


class Subscription:
    """Events for one reader, the terminal one last."""

    def __init__(self, deltas: Deltas, on_close: "Callable[[Subscription], None]", room: int = ROOM) -> None:
        self._deltas: Deltas = deltas
        self._on_close = on_close
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()
        self._room = asyncio.Semaphore(room)
        self._is_closed = False
        self.seq = 0
        """The number of the newest event read; a piece of the answer has that of the event before it."""

    async def next(self) -> Event:
        """The next event; not to be called after the terminal one. Cancelling the wait loses nothing."""
        self.seq, event = await self._events.get()
        if isinstance(event, AnswerDelta):
            self._room.release()
        return event

    async def next_all(self) -> list[Event]:
        """As `next`, and whatever else has happened by then."""
        events = [await self.next()]
        while not self._events.empty():
            events.append(await self.next())  # does not wait
        return events

    async def __aiter__(self) -> AsyncGenerator[Event]:
        while True:
            event = await self.next()
            yield event
            if isinstance(event, Terminal):
                return

    def close(self) -> None:
        """Read no more; the writer waits for this reader no longer."""
        if not self._is_closed:
            self._is_closed = True
            self._room.release()
            self._on_close(self)

    def deliver(self, seq: int, event: Event) -> None:
        """Pass on an event that is no piece of the answer; never waits."""
        if not self._is_closed:
            self._events.put_nowait((seq, event))

    async def deliver_delta(self, seq: int, delta: AnswerDelta) -> None:
        """Pass on a piece of the answer: the owner is waited for, others lose it while they are behind."""
        if self._is_closed or self._deltas == "none" or (self._deltas == "all" and self._room.locked()):
            return
        await self._room.acquire()
        if not self._is_closed:
            self._events.put_nowait((seq, delta))
        else:
            self._room.release()


class EventLog:
    """One run's events and their fold.

    Args:
        record: where the run begins, or is continued.
        journal: told of every event.
        is_read: whether the answer has an owner from the start, `answer`; a run in the background has none.
    """

    def __init__(self, record: Record, journal: Journal | None = None, *, is_read: bool = True) -> None:
        self.record = record
        self.answer = Subscription("answer", self._drop)
        self._journal = journal
        self._events: list[tuple[int, Event]] = []
        self._subscriptions = [self.answer] if is_read else []

    @property
    def has_answer_begun(self) -> bool:
        """Whether a piece of the answer was shown: from then on it cannot be another answer."""
        return self.record.answer_began_s is not None

    def append(self, event: Event) -> None:
        """Take note of anything but a piece of the answer; never waits."""
        self._fold(event)
        self._publish(event)

    async def append_delta(self, delta: AnswerDelta) -> None:
        """Take note of a piece of the answer; waits while the answer's owner is behind. It is not kept for
        later subscribers.
        """
        self._fold(delta)
        seq = self.seq
        for subscription in tuple(self._subscriptions):
            await subscription.deliver_delta(seq, delta)

    async def replay(self) -> None:
        """Show a run that has ended to its readers once more; nothing is folded again."""
        record = self.record
        reasoning = record.answering.reasoning if record.answering else ""
        if record.status == "finished" and (record.answer or reasoning):
            await self.answer.deliver_delta(self.seq, AnswerDelta(record.wall_s, record.answer, reasoning))
        self._publish(self._ending)

    @property
    def _ending(self) -> Event:
        """The terminal event of a run that has ended."""
        record = self.record
        if record.status == "finished":
            return RunFinished(record.wall_s, record.answer, record.finish or FinishReason.STOP)
        if record.status == "failed" and record.failure is not None:
            return RunFailed(record.wall_s, record.failure)
        return RunCancelled(record.wall_s)

    def subscribe(self, after_seq: int = 0, deltas: Literal["all", "none"] = "none") -> Subscription:
        """Events from now on, and those kept since `after_seq`; of a run that has ended, at least its end."""
        subscription = Subscription(deltas, self._drop)
        kept = [(seq, event) for seq, event in self._events if seq > after_seq]
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
