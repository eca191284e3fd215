"""A run as its readers see it."""

from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Literal

from conductor.model.failure import Failure
from conductor.run.event_log import EventLog, Subscription
from conductor.run.events import Event
from conductor.run.record import Record, RunRecords


class Run:
    """A run under way: its events as they come, and its record at any time."""

    def __init__(
        self, log: EventLog, earlier: Mapping[str, Record] | None = None, outer: "Run | None" = None
    ) -> None:
        self._log, self._earlier, self._outer = log, dict(earlier or {}), outer
        self._is_detached = False
        self._cancel: Callable[[], object] | None = None
        self.inner: list[Run] = []
        """The runs that its steps are, where they are; in the order they began."""
        self.why_left: Failure | None = None
        """Why its caller is gone, where it did not leave by itself: on record if the run is cancelled."""

    @property
    def record(self) -> Record:
        """As far as it has got."""
        return self._log.record

    @property
    def records(self) -> RunRecords:
        """Its own record, and those of the runs inside it."""
        inner = {record.id: record for run in self.inner for record in run.records}
        return RunRecords(self.record, self._earlier | inner)

    def cancel(self) -> None:
        """End it now, as leaving its block would: its readers get `RunCancelled`. One that has ended stays as
        it is.
        """
        if self._cancel is not None:
            self._cancel()

    def on_cancel(self, cancel: Callable[[], object]) -> None:
        """What `cancel` does; for who drives the run."""
        self._cancel = cancel

    def detach(self) -> None:
        """Leave the run to another process. From now on the end of its block closes the calls and appends
        `RunDetached` in place of `RunCancelled`, so that `resume_run` can continue it from `records`.
        """
        self._is_detached = True

    @property
    def is_detached(self) -> bool:
        """Whether it, or the run that it is a step of, is left to another process."""
        return self._is_detached or (self._outer is not None and self._outer.is_detached)

    def watch(self) -> None:
        """Somebody looks on: from now on its journal is told the conductor's and the steps' words as they come."""
        self._log.is_watched = True

    @property
    def answer(self) -> Subscription:
        """Everything, for the one who reads the answer; a slow reader slows the answering worker."""
        return self._log.answer

    def subscribe(
        self, after_seq: int | None = None, deltas: Literal["all", "none"] = "none"
    ) -> Subscription:
        """Events for one more reader, who holds nobody up; see `EventLog.subscribe`."""
        return self._log.subscribe(after_seq, deltas)

    async def events(self) -> AsyncGenerator[Event]:
        """Every event for the answer's reader in order, the terminal one last."""
        async for event in self.answer:
            yield event
