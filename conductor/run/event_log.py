"""What stands between a run and its reader: progress passes at once, the answer waits for the reader.

Progress events are few (a plan has a handful of steps), so they are never held up. Pieces of the answer are many: at most
`room` of them wait, so a slow reader slows the worker that writes the answer and nothing grows.
"""

import asyncio

from conductor.run.events import AnswerDelta, Event

ROOM = 64
"""Pieces of the answer that may wait for the reader."""


class Outbox:
    """A queue of events with one writer side (the run's tasks) and one reader."""

    def __init__(self, room: int = ROOM) -> None:
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._room = asyncio.Semaphore(room)
        self.begun = False
        """Whether a piece of the answer was put in: from then on it cannot be another answer."""

    def put(self, event: Event) -> None:
        """Pass on anything but a piece of the answer; never waits."""
        self._events.put_nowait(event)

    async def put_delta(self, delta: AnswerDelta) -> None:
        """Pass on a piece of the answer; waits while the reader is behind."""
        self.begun = True
        await self._room.acquire()
        self._events.put_nowait(delta)

    async def get_all(self) -> list[Event]:
        """The next event, waited for, and whatever else is there by then; cancelling the wait loses nothing."""
        events = [await self.get()]
        while not self._events.empty():
            events.append(await self.get())  # does not wait
        return events

    async def get(self) -> Event:
        """The next event; cancelling the wait loses nothing."""
        event = await self._events.get()
        if isinstance(event, AnswerDelta):
            self._room.release()
        return event
