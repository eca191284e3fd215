"""The log of one run's events. It numbers them, adds them to the run's record, and publishes them to subscribers.

There are two kinds. Progress events are few. They are kept, and all subscribers receive all of them. Pieces of the
answer (`AnswerDelta`) are many. One subscriber is the owner of the answer and receives every piece. If it reads
slowly, the worker that writes the answer is slowed down, so that no buffer grows. Other subscribers lose pieces
while they read too slowly, but never lose progress events.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Literal
from weakref import WeakMethod

from conductor.model.reply import Delta, FinishReason, Reply
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
"""Maximum number of pieces of the answer that are queued for one subscriber."""

Deltas = Literal["answer", "all", "none"]
"""Pieces of the answer that a subscriber receives.

- `answer`: every piece, as the owner of the answer.
- `all`: every piece that arrives while its queue has room.
- `none`: no pieces.
"""
Journal = Callable[[Record, int, Event], None]
"""Function that receives each event before any subscriber does. Its arguments are the record after the event, the
number of the event, and the event. It must not raise.
"""


class EventsNotKept(LookupError):
    """Some requested events happened in another process. Read the record, or the journal's store."""


class Subscription:
    """Event stream of one reader. It ends with the terminal event.

    Args:
        on_close: method of the log to call at the end. A strong reference would make a cycle, and the run's texts
            would stay in memory until the garbage collector runs.
    """

    def __init__(
        self, deltas: Deltas, on_close: "WeakMethod[Callable[[Subscription], None]]", seq: int = 0
    ) -> None:
        self._deltas: Deltas = deltas
        self._on_close = on_close
        self._events = deque[tuple[int, Event]]()
        self._waiting: asyncio.Future[None] | None = None
        """Done once an event arrives."""
        self._n_pieces = 0
        """Number of queued pieces of the answer."""
        self._has_room = asyncio.Event()
        """Set while a writer may add a piece. Cleared only by a writer that has to wait."""
        self._is_closed = False
        self._newest = seq
        self.seq = seq
        """Number of the newest event read. A piece of the answer has the number of the event before it."""

    async def next(self) -> Event:
        """Wait for the next event and return it. Do not call it after the terminal event. Cancelling loses no
        event.
        """
        while not self._events:
            await self._wait()
        return self._take()

    async def next_all(self) -> list[Event]:
        """Wait for and return all queued events. The list may be empty after a call of `wake`."""
        if not self._events:
            await self._wait()
        events: list[Event] = []
        while self._events:
            events.append(self._take())
        return events

    def wake(self) -> None:
        """Make a waiting `next_all` return, even without an event."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def skip_pieces(self) -> None:
        """Receive no more pieces of the answer, only events."""
        self._deltas = "none"
        self._has_room.set()

    async def __aiter__(self) -> AsyncGenerator[Event]:
        while True:
            event = await self.next()
            yield event
            if isinstance(event, Terminal):
                return

    async def _wait(self) -> None:
        self._waiting = asyncio.get_running_loop().create_future()
        await self._waiting

    def _take(self) -> Event:
        self.seq, event = self._events.popleft()
        if isinstance(event, AnswerDelta):
            self._n_pieces -= 1
            if self._n_pieces == ROOM - 1:
                self._has_room.set()
        return event

    def _put(self, seq: int, event: Event) -> None:
        self._events.append((seq, event))
        self.wake()

    def close(self) -> None:
        """End the subscription. A writer that waits for this reader continues."""
        if not self._is_closed:
            self._is_closed = True
            self._has_room.set()
            if (on_close := self._on_close()) is not None:
                on_close(self)

    def deliver(self, seq: int, event: Event) -> None:
        """Queue an event that is not a piece of the answer. Never waits."""
        if not self._is_closed:
            self._newest = seq
            self._put(seq, event)

    @property
    def is_full(self) -> bool:
        """True if the reader's queue has no room for another piece of the answer."""
        return self._n_pieces >= ROOM and not self._is_closed and self._deltas != "none"

    async def wait_for_room(self) -> None:
        """Wait until the queue has room for a piece of the answer, or the reader needs no more pieces."""
        while self.is_full:
            self._has_room.clear()
            await self._has_room.wait()

    def deliver_piece(self, piece: AnswerDelta) -> None:
        """Queue a piece of the answer. Drop it if this reader receives no pieces or its queue is full."""
        if self._n_pieces < ROOM and not self._is_closed and self._deltas != "none":
            self._n_pieces += 1
            self._put(self._newest, piece)


class EventLog:
    """Events of one run, and the record that results from them."""

    def __init__(self, record: Record, journal: Journal | None = None) -> None:
        self.record = record
        self.is_watched = False
        """True if a viewer wants the texts of the conductor and the steps while they are written."""
        self.answer = Subscription("answer", WeakMethod(self._drop), record.seq)
        self._journal = journal
        self._noted = set[tuple[int, int | None]]()
        """Plans and steps whose text the journal has received."""
        self._first_seq = record.seq + 1
        self._events: list[tuple[int, Event]] = []
        self._subscriptions = [self.answer]

    @property
    def has_answer_begun(self) -> bool:
        """True if a piece of the answer has been published. After that, the answer cannot be replaced."""
        return self.record.answer_began_s is not None

    @property
    def is_answer_seen(self) -> bool:
        """True if the client has received a piece of the answer. An outer run receives each immediately."""
        is_read = self.record.task.stream or self.record.parent is not None
        return is_read and self.has_answer_begun

    def append(self, event: Event) -> None:
        """Add an event to the record and publish it. It must not be a piece of the answer. Never waits."""
        self._fold(event)
        self._publish(event)

    async def append_durably(self, event: RunSuspended, write: Callable[[], Awaitable[None]] | None) -> None:
        """Add `event` to the record, but publish it only after `write` has stored it without an error."""
        self._fold(event)
        if write is not None:
            await write()
        self._publish(event)

    def offer_piece(self, piece: AnswerDelta) -> bool:
        """Publish a piece and return True, unless the owner's queue is full. Later subscribers do not get it."""
        if self.answer.is_full:
            return False
        self._fold(piece)
        for subscription in self._subscriptions:
            subscription.deliver_piece(piece)
        return True

    async def append_piece(self, piece: AnswerDelta) -> None:
        """Publish a piece of the answer. Wait while the queue of the answer's owner is full."""
        while not self.offer_piece(piece):
            await self.answer.wait_for_room()

    def end_answer(self, why: RunFailed) -> None:
        """End the answer for its owner, because another answer will replace it. The run continues."""
        self.answer.deliver(self.seq, why)
        self.answer.close()

    def note_work(self, at_s: float, plan: int, step: int | None, delta: Delta, reply: Reply) -> None:
        """Send new text of the conductor or of a step to the journal, first all text so far, if a viewer wants it. It is
        sent to no subscriber.
        """
        if self._journal is None or not self.is_watched:
            return
        is_first = (plan, step) not in self._noted
        self._noted.add((plan, step))
        text = "".join(reply.texts) if is_first else delta.text
        reasoning = "".join(reply.thoughts) if is_first else delta.reasoning
        if text or reasoning:
            self._journal(self.record, self.seq, WorkDelta(at_s, plan, step, text, reasoning))

    def replay(self) -> None:
        """Publish the answer and the terminal event of an ended run once more. The record does not change."""
        record = self.record
        reasoning = record.answering.reasoning if record.answering else ""
        text = record.shown
        if record.status in ("finished", "waiting") and (text or reasoning):
            self.answer.deliver_piece(AnswerDelta(record.wall_s, text, reasoning))
        self._publish(self._ending)

    @property
    def _ending(self) -> Event:
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
        """Subscribe to events after `after_seq`, or to all of this log, at least the terminal one. Raise
        EventsNotKept if some are missing.
        """
        known_seq = self._first_seq - 1 if after_seq is None else after_seq
        if not self._first_seq - 1 <= known_seq <= self.seq:
            raise EventsNotKept(
                f"This log contains the events {self._first_seq} to {self.seq}, but the reader requested the events after {known_seq}."
            )
        subscription = Subscription(deltas, WeakMethod(self._drop), known_seq)
        events = [(seq, event) for seq, event in self._events if seq > known_seq]
        if not events and self.record.status != "running":
            events = [(self.seq, self._ending)]
        for seq, event in events:
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
        record = self.record = after(self.record, event)
        if self._journal is not None:
            self._journal(record, record.seq, event)
