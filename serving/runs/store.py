"""The ports to the store of runs: records, events, request claims and suspended runs, in memory or in a database."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Protocol

from conductor.run.events import Event
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.runs.cached_answers import CachedAnswer
from serving.runs.claims import Claim
from serving.runs.feedback import Feedback
from serving.runs.rows import Item
from serving.runs.run_filter import ANY_RUN, RunFilter
from serving.runs.tool_ids import CallIds

Place = tuple[int, str]
"""Of a run in lists: when it began in microseconds, and its id."""


@dataclass(frozen=True, slots=True)
class RunPage:
    """Runs of a list.

    Args:
        runs: the one that began last first.
        end: where the list goes on, with runs that began before it; None: there are no more. A page that is not full
            may have one: who looks for few runs among many looks far back, and not without end in one go.
    """

    runs: list[RunRecords]
    end: Place | None = None

    def covers(self, place: Place, before: Place | None) -> bool:
        """Whether a run there, among those that began before `before`, is newer than what follows this page."""
        return (before is None or place < before) and (self.end is None or place >= self.end)


@dataclass(frozen=True, slots=True)
class EventPage:
    """What has happened in a run.

    Args:
        items: in order.
        is_over: whether nothing will follow them.
    """

    items: list[Item]
    is_over: bool


class StoreListener:
    """What a store reports to its replica. Every method does nothing by default."""

    def on_cancel(self, id: str) -> None:
        """Another replica received a cancel request for a run that runs here."""

    def on_taken_over(self, id: str) -> None:
        """Another replica has taken over a run that runs here, because it believed this replica dead."""

    def on_orphan(self, records: RunRecords, paid_usd: Decimal) -> None:
        """This replica is to continue a run of a replica that ended.

        Args:
            records: of the run.
            paid_usd: what the ledger has for its calls with a known bill.
        """

    def on_wait_end(self, records: RunRecords) -> None:
        """A run that waited for results of tools expired or was cancelled."""

    def on_watch(self, id: str) -> None:
        """A client watches a run that runs here, on any replica. May be called more than once for a run."""

    def owns(self, id: str) -> bool:
        """Return whether this replica runs the run of that id or is about to."""
        return False

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """Events of a run of this replica, in order, before they are written; no items once the run is over."""


class Records(Protocol):
    """Records of runs. Those of this replica are written soon; until then they are read from its memory."""

    @property
    def n_unwritten(self) -> int:
        """Runs of this replica that have ended and are not written yet. Each keeps its slot until it is."""
        ...

    def unwritten_bytes(self) -> Counter[str]:
        """Return how many bytes these runs hold in memory, by the id of the key that asked."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether nothing can be written. The store finds out by itself when that is over."""
        ...

    async def put(self, records: RunRecords) -> None:
        """Store a run that has ended, in place of an earlier record of the same id."""
        ...

    async def get(self, id: str) -> RunRecords | None:
        """Return a run, or None if it is not kept any more. Runs of other replicas that are under way are included.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        """Return up to `limit` runs that `run_filter` selects and `caller` may see: those that began before `before`, newest
        first and without their texts.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def remove_texts(self, id: str) -> None:
        """Remove the texts of a run that has ended, and what happened in it; its numbers stay.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def give_feedback(self, feedback: Feedback) -> None:
        """Store feedback on a run, in place of earlier feedback of the same key.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def feedback(self, id: str) -> list[Feedback]:
        """Return the feedback on a run, the oldest first.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...


class Events(Protocol):
    """Events of runs: noted by the replica that runs them, read by every replica."""

    def keep(self, id: str, seq: int = 0) -> None:
        """Expect a run that outlives its client and its replica, so pieces of its answer are stored too. Its items are
        numbered from after `seq`.
        """
        ...

    def forget(self, id: str) -> None:
        """Undo `keep`: the run has not begun."""
        ...

    def note(self, record: Record, seq: int, event: Event) -> None:
        """Note an event of a run or of a run inside it: a `conductor.run.event_log.Journal`."""
        ...

    async def events(self, id: str, after: int) -> EventPage:
        """Return the events of a run after the item number `after`, if they are kept.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def watch(self, id: str) -> None:
        """Add pieces of the answer to the events of a run, from now on and within a second on every replica. The first
        piece has all of the answer so far.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Cancel a run of another replica, or one that waits. Return False if there is none.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def wait_until_written(self, id: str) -> None:
        """Wait until another replica would go on with a run of this one that is to be kept.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        ...

    async def wait_while_late(self, id: str) -> None:
        """Wait while the first write of a run is overdue: if the replica died, nothing would say what became of the run. Do
        not wait if the store is away, or if the run has ended.
        """
        ...


class RequestClaims(Protocol):
    """Which run answers a request that may be sent again."""

    async def claim(self, claim: Claim) -> Claim:
        """Claim a name for a request. Return the claim in force, which may be an earlier one.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Release a claim: nothing was run."""
        ...

    async def free(self, claim: Claim) -> bool:
        """Release the claim of a replica that ended before it began the run. Return False if the run has begun or may
        still begin, True if the claim is released, by whichever replica.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def find_answer(self, owner: str, asked: str) -> str | None:
        """Return the id of the run that answered a request; see `serving/sessions/deduplication.py`.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Store which run answers a request, in place of an earlier one.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...


class SuspendedRuns(Protocol):
    """Runs that wait for tool results, exactly as they are."""

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """Store a run that is to wait for tool results, for `wait_s` at most. Once this returns, every replica can
        resume it.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def find_waiting(self, id: str) -> RunRecords | None:
        """Return a run that waits, exactly as it was suspended, or None if it does not wait.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def resume(self, id: str) -> RunRecords | None:
        """Take a run that waits, exactly as it was suspended, and own it from then on. Return None if it does not wait: of
        several replicas that try, one gets it.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def call_ids(self) -> CallIds:
        """Return the signer of tool call ids, which is the same on every replica.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...


class RecordStore(Records, Events, RequestClaims, SuspendedRuns, Protocol):
    """The store of one replica: in memory, or in a database that all replicas share."""

    owner: str
    """The replica, for records."""

    def start(self) -> None:
        """Look after the runs of replicas that have ended, if anything can have been stored."""
        ...

    async def aclose(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        ...


StoreFactory = Callable[[StoreListener], RecordStore]
"""Opens the store of a replica, which reports to the listener."""
