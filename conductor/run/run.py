"""A run under way."""

from collections.abc import AsyncGenerator

from conductor.run.event_log import Outbox
from conductor.run.events import AnswerDelta, Event, Terminal
from conductor.run.record import Record


class Run:
    """A run under way: its events as they come, and its record at any time."""

    def __init__(self, record: Record, outbox: Outbox) -> None:
        self.record = record
        self._outbox = outbox

    async def next(self) -> Event:
        """The next event; not to be called after the terminal one. For one reader; a slow one slows the answering worker.

        Cancelling the wait loses nothing, so a reader may do something else after a while of silence.
        """
        event = await self._outbox.get()
        if isinstance(event, AnswerDelta) and self.record.answer_began_s is None:
            self.record = self.record.after(event)
        return event

    async def next_all(self) -> list[Event]:
        """As `next`, and whatever else has happened by then."""
        return await self._outbox.get_all()

    async def events(self) -> AsyncGenerator[Event]:
        """Every event in order, the terminal one last."""
        while True:
            event = await self.next()
            yield event
            if isinstance(event, Terminal):
                return
