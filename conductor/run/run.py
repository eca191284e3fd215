"""A run as its readers see it."""

from collections.abc import AsyncGenerator, Mapping
from typing import Literal

from conductor.run.event_log import EventLog, Subscription
from conductor.run.events import Event
from conductor.run.record import Record, RunRecords


class Run:
    """A run under way: its events as they come, and its record at any time."""

    def __init__(self, log: EventLog, earlier: Mapping[str, Record] | None = None) -> None:
        self._log, self._earlier = log, dict(earlier or {})
        self.inner: list[Run] = []
        """The runs that its steps are, where they are; in the order they began."""

    @property
    def record(self) -> Record:
        """As far as it has got."""
        return self._log.record

    @property
    def records(self) -> RunRecords:
        """Its own record, and those of the runs inside it."""
        inner = {record.id: record for run in self.inner for record in run.records}
        return RunRecords(self.record, self._earlier | inner)

    @property
    def answer(self) -> Subscription:
        """Everything, for the one who reads the answer; a slow reader slows the answering worker."""
        return self._log.answer

    def subscribe(self, after_seq: int = 0, deltas: Literal["all", "none"] = "none") -> Subscription:
        """Events for one more reader, who holds nobody up; those since `after_seq` first."""
        return self._log.subscribe(after_seq, deltas)

    async def events(self) -> AsyncGenerator[Event]:
        """Every event for the answer's reader in order, the terminal one last."""
        async for event in self.answer:
            yield event
