"""Where records of runs are kept, and what happens in them. A small port: memory, or a database."""

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
from serving.runs.finding import ANY, Wanted
from serving.runs.rows import Item
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

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        """Events of a run of this replica, in order, before they are written; no items once the run is over."""


class RecordStore(Protocol):
    """Keeps records."""

    owner: str
    """The replica, for records."""

    def start(self) -> None:
        """Look after the runs of replicas that have ended, if anything can have been stored."""
        ...

    def keep(self, id: str, seq: int = 0) -> None:
        """Before a run begins: it outlives its client and its replica, so that pieces of its answer are kept
        too. Items are numbered from after `seq`.
        """
        ...

    @property
    def n_unwritten(self) -> int:
        """Runs of this replica that have ended and are not written yet. Each keeps its place until it is."""
        ...

    def unwritten_bytes(self) -> Counter[str]:
        """Return how many bytes these runs hold in memory, by the id of the key that asked."""
        ...

    @property
    def is_away(self) -> bool:
        """Whether nothing can be written. The store finds out by itself when that is over."""
        ...

    def forget(self, id: str) -> None:
        """A run that was to be kept has not begun."""
        ...

    async def claim(self, claim: Claim) -> Claim:
        """Claim a name for a request; gives the claim that holds, which may be an earlier one.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def release(self, claim: Claim) -> None:
        """Give the name back: nothing was run."""
        ...

    async def free(self, claim: Claim) -> bool:
        """Give the name back in place of a replica that did not live to begin the run; False where the run has
        begun or may yet begin. True too where somebody else has done so.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def find_answer(self, owner: str, asked: str) -> str | None:
        """The id of the run that answered what was asked; see `serving/runs/answer_cache.py`.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """Keep it, in place of an earlier one.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    def note(self, record: Record, seq: int, event: Event) -> None:
        """Take note of what happens in a run, or in one inside it: a `conductor.run.event_log.Journal`."""
        ...

    async def wait_until_written(self, id: str) -> None:
        """Wait until another replica would go on with a run of this one that is to be kept.

        Raises:
            StoreUnavailable: it cannot be written.
        """
        ...

    async def wait_while_late(self, id: str) -> None:
        """As long as the beginning of a run of this replica should be written by now and is not: if the replica died, nothing
        would say what became of it. Not for a store that is away, nor for a run that has ended: it is written once its client
        was told.
        """
        ...

    async def put(self, records: RunRecords) -> None:
        """Keep a run that has ended, in place of an earlier one of the same id."""
        ...

    async def remove_texts(self, id: str) -> None:
        """Remove the texts of a run that has ended, and what happened in it; its numbers stay.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def get(self, id: str) -> RunRecords | None:
        """The run of that id, if it is still kept; also one of another replica that is under way.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, wanted: Wanted = ANY
    ) -> RunPage:
        """Up to `limit` of the `wanted` runs that `caller` may see, without their texts, the one that began last
        first; those that began before `before`.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def events(self, id: str, after: int) -> EventPage:
        """What happened in the run of that id after the item of that number, as far as it is kept.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def watch(self, id: str) -> None:
        """Somebody follows the run of that id, wherever it is under way: pieces of its answer are among its events
        from now on, within a second on every replica; the first of them has all that was said before.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def give_feedback(self, feedback: Feedback) -> None:
        """Keep what somebody says of a run, in place of what the same key said before.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def feedback(self, id: str) -> list[Feedback]:
        """What is said of the run of that id, in the order in which it was given.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def cancel(self, id: str) -> bool:
        """Have a run of another replica ended; False where none of that id is under way.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """Keep a run that is to wait for results of tools, so long at most. It can be resumed, on any replica, once
        this returns.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def find_waiting(self, id: str) -> RunRecords | None:
        """A run that waits, exactly as it was suspended; None where none of that id does.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def resume(self, id: str) -> RunRecords | None:
        """Take a run that waits, exactly as it was suspended; None where none of that id does. Of several that
        try, one gets it, and owns the run from then on.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def call_ids(self) -> CallIds:
        """What makes and reads the ids of calls of tools; the same on every replica.

        Raises:
            StoreUnavailable: the store is away.
        """
        ...

    async def aclose(self) -> None:
        """Write what is waiting, for a few seconds at most."""
        ...


StoreFactory = Callable[[StoreListener], RecordStore]
"""Opens the store of a replica, which reports to the listener."""
