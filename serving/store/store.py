"""Protocols of the run store: records, events, request claims and suspended runs."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from conductor.run.events import Event
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.store.claims import CachedAnswer, Claim
from serving.store.feedback import Feedback
from serving.store.rows import Item
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.tool_ids import CallIds

Place = tuple[int, str]
"""Position of a run in lists: its start in microseconds since 1970, and its id."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Page of a list of runs.

    Args:
        runs: runs, newest first.
        end: place at which the next page starts (it lists the runs before that place), or None at the end of
            the list. A page that is not full may have an `end`, because one request searches only a bounded
            part of the runs.
    """

    runs: list[RunRecords]
    end: Place | None = None

    def covers(self, place: Place, before: Place | None) -> bool:
        """Return whether `place` belongs to this page of the runs before `before`."""
        return (before is None or place < before) and (self.end is None or place >= self.end)


@dataclass(frozen=True, slots=True)
class EventPage:
    """Page of a run's events.

    Args:
        items: events in order.
        is_over: whether no more events will follow.
    """

    items: list[Item]
    is_over: bool


class StoreListener:
    """Callbacks of a store to its replica. By default every method does nothing."""

    def on_cancel(self, id: str) -> None:
        """Called when another replica receives a cancel request for a run that runs here."""

    def on_taken_over(self, id: str) -> None:
        """Called when another replica has taken over a run that runs here, because it considered this replica
        dead.
        """

    def on_orphan(self, records: RunRecords, paid_usd: Decimal) -> None:
        """Called when this replica has to continue a run of a replica that ended.

        Args:
            records: records of the run.
            paid_usd: sum of the ledger for the run's calls with an exact cost.
        """

    def on_wait_end(self, records: RunRecords) -> None:
        """Called when a run that waited for tool results expired or was cancelled."""

    def on_watch(self, id: str) -> None:
        """Called when a client of any replica watches a run that runs here. May be called repeatedly for a
        run.
        """

    def owns(self, id: str) -> bool:
        """Return whether this replica runs the run or is about to start it."""
        return False

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """Called with new events of a run of this replica, in order. An empty sequence means that the run is
        over.

        Events of a run that another replica may continue are passed after they are written, all others
        before.
        """


class Records(Protocol):
    """Records of runs. Records of this replica are written with a delay and read from memory until then."""

    @property
    def n_unwritten(self) -> int:
        """Number of ended runs of this replica that are not written yet. Each keeps its slot until it is
        written.
        """
        ...

    def unwritten_bytes(self) -> Counter[str]:
        """Return the memory of the ended runs that are not written yet, in bytes, by the id of the calling
        key.
        """
        ...

    @property
    def is_away(self) -> bool:
        """True if the store is unreachable for writes. It retries on its own."""
        ...

    async def put(self, records: RunRecords) -> None:
        """Store a run that has ended. Replaces an earlier record of the same id."""
        ...

    async def get(self, id: str) -> RunRecords | None:
        """Return a run, or None if it is not stored any more. Includes running ones of other replicas.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        """Return up to `limit` runs that `run_filter` selects and `caller` may see, newest first and without
        texts.

        If `before` is set, only runs before that place are listed.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def remove_texts(self, id: str) -> None:
        """Remove the texts and events of a run that has ended. Its numbers remain.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def give_feedback(self, feedback: Feedback) -> None:
        """Store feedback on a run. Replaces earlier feedback of the same key.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def feedback(self, id: str) -> list[Feedback]:
        """Return the feedback on a run, oldest first.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...


class Events(Protocol):
    """Events of runs. Each is noted by the replica of the run and can be read on every replica."""

    def keep(self, id: str, seq: int = 0) -> None:
        """Register a run that outlives its client and its replica, so that pieces of its answer are stored,
        too.

        Its items are numbered from `seq` + 1.
        """
        ...

    def forget(self, id: str) -> None:
        """Undo `keep`, because the run has not started."""
        ...

    def note(self, record: Record, seq: int, event: Event) -> None:
        """Note an event of a run or of a nested run. Has the signature of `conductor.run.event_log.Journal`."""
        ...

    async def events(self, id: str, after: int) -> EventPage:
        """Return the events of a run after item number `after`, as far as they are stored.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def watch(self, id: str) -> None:
        """Add pieces of the answer to the events of a run from now on, within a second on every replica.

        The first piece contains the whole answer so far.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel a run of another replica, or a run that waits for tool results. Return False if there is
        none.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def wait_until_written(self, id: str) -> None:
        """Wait until the start of a kept run is written, so that another replica could continue it.

        Raises:
            StoreUnavailable: the run cannot be written.
        """
        ...

    async def wait_while_late(self, id: str) -> None:
        """Wait while the first write of a run is overdue.

        Without that write, no record of the run would remain if the replica died. Return immediately if the
        store is unreachable. The wait is bounded.
        """
        ...


class RequestClaims(Protocol):
    """Mapping of repeatable requests to the run that answers them."""

    async def claim(self, claim: Claim) -> Claim:
        """Claim a name for a request. Return the claim in force, which may be an earlier one.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Release a claim, because no run was started."""
        ...

    async def free(self, claim: Claim) -> bool:
        """Release the claim of a replica that ended before it started the run.

        Return True if the claim is released, by this or another replica. Return False if the run has started
        or may still start.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def find_answer(self, owner: str, asked: str) -> str | None:
        """Return the id of the run that answered a request, or None. See `serving/sessions/deduplication.py`.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store which run answers a request. Replaces an earlier entry.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...


class SuspendedRuns(Protocol):
    """Runs that wait for tool results, stored unchanged."""

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """Suspend a run for at most `wait_s` seconds until it gets tool results.

        When this returns, every replica can resume the run.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def find_waiting(self, id: str) -> RunRecords | None:
        """Return a suspended run unchanged, or None if it does not wait.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def resume(self, id: str) -> RunRecords | None:
        """Take ownership of a suspended run and return it unchanged, or None if it does not wait.

        If several replicas try, one of them gets the run.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...

    async def call_ids(self) -> CallIds:
        """Return the signer of tool call ids, which every replica shares.

        Raises:
            StoreUnavailable: the store is unreachable.
        """
        ...


class RecordStore(Records, Events, RequestClaims, SuspendedRuns, Protocol):
    """Run store of one replica: in memory, or in a database that all replicas share."""

    owner: str
    """Id of the replica, for records."""

    def start(self) -> None:
        """Start to sweep for runs of replicas that have ended, if the store may contain runs."""
        ...

    async def aclose(self) -> None:
        """Write pending data for at most a few seconds, and stop."""
        ...


StoreFactory = Callable[[StoreListener], RecordStore]
"""Factory of a replica's store, which reports to the listener."""
