"""Protocols of the run store: records, events, request claims and suspended runs."""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol, Self

from conductor.model.terms import Permit
from conductor.run.events import Event
from conductor.run.record import Account, Record, RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.store.feedback import Feedback
from serving.store.idempotency import CachedAnswer, Claim
from serving.store.rows import Item, made_us
from serving.store.run_costs import CostQuery, CostReport
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.tool_ids import CallIds

Place = tuple[int, str]
"""Position of a run in a list: its start in microseconds since 1970, and its id."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts about a run that are known before its record is loaded.

    Args:
        has_inner: whether runs are nested in it.
        has_content: whether its texts are stored.
        n_bytes: bytes that `Records.get` would load: the size of the compressed record, or 0 if the run is in
            memory.
    """

    account: Account
    status: RunStatus
    permit: Permit
    place: Place
    has_inner: bool
    has_content: bool
    n_bytes: int = 0

    @classmethod
    def of(cls, records: RunRecords, *, has_content: bool, n_bytes: int = 0) -> Self:
        record = records.record
        return cls(
            record.account,
            record.status,
            record.task.permit,
            (made_us(record), record.id),
            bool(records.inner),
            has_content,
            n_bytes,
        )


@dataclass(frozen=True, slots=True)
class RunPage:
    """Page of a list of runs.

    Args:
        runs: runs, newest first.
        end: position at which this page ends and the next page starts, or None at the end of the list. Even a
            page that is not full may have an `end`, because one request searches only a bounded part of the
            runs.
    """

    runs: list[RunRecords]
    end: Place | None = None

    def covers(self, place: Place, before: Place | None) -> bool:
        """Return whether a run at `place` belongs to this page, which starts at `before`."""
        return (before is None or place < before) and (self.end is None or place >= self.end)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Page of a run's events in order. After it `is_over`, no more will follow."""

    items: list[Item]
    is_over: bool


class StoreListener:
    """Callbacks of a store to its replica. By default every method does nothing."""

    def on_cancel(self, id: str) -> None:
        """Called when another replica receives a cancel request for a run that runs here."""

    def on_taken_over(self, id: str) -> None:
        """Called when another replica has taken over a run that runs here, because this replica seemed dead."""

    def loading_orphan(self, id: str) -> AbstractAsyncContextManager[object]:
        """Hold the memory to load a run of a replica that ended, or raise Overloaded if there is none."""
        return nullcontext()

    def on_orphan(self, records: RunRecords, paid_usd: Decimal) -> None:
        """Called when this replica has to continue a run of one that ended. `paid_usd` sums its calls of
        exact cost.
        """

    def on_wait_end(self, records: RunRecords) -> None:
        """Called when a run that waited for tool results expired or was cancelled."""

    def on_watch(self, id: str) -> None:
        """Called, maybe repeatedly, when a client of any replica starts to watch a run that runs here."""

    def owns(self, id: str) -> bool:
        """Return whether this replica executes the run or is about to start it."""
        return False

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """Called with new events of a run here, in order, or none when it is over. The events of a run that
        may continue elsewhere are written before.
        """


class Records(Protocol):
    """Storage of the records of runs.

    The records of this replica's runs are written with a delay. Until then they are read from memory.
    """

    @property
    def n_unwritten(self) -> int:
        """Number of ended runs of this replica that are not written yet. Each occupies a slot until then."""
        ...

    def unwritten_bytes(self) -> Counter[str]:
        """Return the bytes of memory that ended but unwritten runs occupy, by the id of the key that paid."""
        ...

    @property
    def is_away(self) -> bool:
        """True if records cannot be written because the store is unreachable. The store retries by itself."""
        ...

    async def put(self, records: RunRecords) -> None:
        """Store a run that has ended. An earlier record of the run is replaced."""
        ...

    async def get(self, id: str) -> RunRecords | None:
        """Return a run, also an active one of another replica, or None if it is not stored."""
        ...

    async def info(self, id: str) -> RunInfo | None:
        """Return facts about a run without loading its texts, or None if it is not stored."""
        ...

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        """Return the newest runs that `caller` may see, with only the beginning of their questions as texts.
        `before` is the previous page's `end`.
        """
        ...

    async def costs(self, query: CostQuery, caller: Caller) -> CostReport:
        """Return the costs of the runs that the caller may see, and that have ended or wait for tool results.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def remove_texts(self, id: str) -> None:
        """Remove the texts and events of a run that has ended. Its numbers remain."""
        ...

    async def give_feedback(self, feedback: Feedback) -> None:
        """Store feedback on a run. Earlier feedback of the same key is replaced."""
        ...

    async def feedback(self, id: str) -> list[Feedback]:
        """Return the feedback on a run, oldest first."""
        ...


class Events(Protocol):
    """Storage of the events of runs.

    The replica that executes a run writes them, and every replica reads them.
    """

    def keep(self, id: str, seq: int = 0) -> None:
        """Register a run that outlives its client, and that another replica continues if this one ends.

        The answer of such a run is stored while it is streamed. The run's events are numbered from `seq` + 1.
        """
        ...

    def forget(self, id: str) -> None:
        """Undo `keep`, because the run has not started."""
        ...

    def note(self, record: Record, seq: int, event: Event) -> None:
        """Store an event of a run or of a nested run, in the background.

        The signature is that of `conductor.run.event_log.Journal`.
        """
        ...

    async def events(self, id: str, after: int) -> EventPage:
        """Return the stored events of a run whose numbers are greater than `after`."""
        ...

    async def watch(self, id: str) -> None:
        """Store the answer of a run while it is streamed, so that others can follow it, within a second from
        another replica. The first event contains all of the answer so far.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel a run of another replica, or one that waits for tool results. Return False if there is none."""
        ...

    async def wait_until_written(self, id: str) -> None:
        """Wait until the start of a run that outlives its client is written, so that others can continue it."""
        ...

    async def wait_while_late(self, id: str) -> None:
        """Wait while the first write of a run is overdue, for a few seconds. Do not wait if the store is
        unreachable.
        """
        ...


class RequestClaims(Protocol):
    """Storage of claims and cached answers, by which repeated requests find the run that answers them."""

    async def claim(self, claim: Claim) -> Claim:
        """Claim an idempotency key for a run. Return the valid claim, which may belong to an earlier request."""
        ...

    async def release(self, claim: Claim) -> None:
        """Release a claim whose run was not started."""
        ...

    async def free(self, claim: Claim) -> bool:
        """Release the claim of a replica that ended before it started the run. Return False if the run has
        started or may still start.
        """
        ...

    async def find_answer(self, owner: str, request_hash: str) -> str | None:
        """Return the id of the run that answered an equal request, or None. See `CachedAnswer.owner`."""
        ...

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store which run answered a request. An earlier entry is replaced."""
        ...


class SuspendedRuns(Protocol):
    """Storage of runs that wait for tool results. They are stored without redaction."""

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """Suspend a run for at most `wait_s` seconds until it gets tool results. Every replica can then
        resume it.
        """
        ...

    async def find_waiting(self, id: str) -> RunRecords | None:
        """Return a suspended run, without redaction, or None if the run does not wait."""
        ...

    async def resume(self, id: str) -> RunRecords | None:
        """Take ownership of a suspended run and return it, without redaction, or None if it does not wait.
        Only one replica gets it.
        """
        ...

    async def call_ids(self) -> CallIds:
        """Return the signer of tool call ids. All replicas sign with the same secrets."""
        ...


class RecordStore(Records, Events, RequestClaims, SuspendedRuns, Protocol):
    """Run store of one replica: in memory, or in a database that all replicas share.

    Methods raise `StoreUnavailable` if the store is unreachable.
    """

    owner: str
    """Id of the replica, which its records contain."""

    def start(self) -> None:
        """Start to search periodically for runs of replicas that have ended, if the store may contain runs."""
        ...

    async def aclose(self) -> None:
        """Write pending data for at most a few seconds, and stop."""
        ...


StoreFactory = Callable[[StoreListener], RecordStore]
"""Function that creates the store of a replica. The store calls the listener."""
