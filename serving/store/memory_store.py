"""Run store in the memory of one replica."""

import dataclasses
import heapq
import secrets
from collections import Counter
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from conductor.run.events import AnswerDelta, Event, StepRestarted
from conductor.run.record import Record, RunRecords, RunStatus
from serving.accounts.caller import Caller
from serving.database.clock import now_us
from serving.fairness import FairDict, in_slices
from serving.settings.sections import LimitSettings
from serving.store.content import for_list, kept_part, without_content
from serving.store.feedback import Feedback
from serving.store.idempotency import CachedAnswer, Claim
from serving.store.rows import Item, fold_items, made_us
from serving.store.run_costs import CostQuery, CostReport, group_rows, rows_of
from serving.store.run_filter import ANY_RUN, RunFilter
from serving.store.store import EventPage, Place, RunInfo, RunPage, StoreListener
from serving.store.tool_ids import SECRET_BYTES, CallIds
from serving.store.unflushed_run import AnswerBuffer, weight


class MemoryStore:
    """Run store in memory, with the newest runs of this replica. It is lost when the replica ends.

    When it is full, the key with the most runs loses its oldest, so that a busy one cannot evict the runs of
    a quiet one.
    """

    owner = ""

    def __init__(self, limits: Callable[[], LimitSettings], listener: StoreListener | None = None) -> None:
        self._limits = limits
        self._runs = FairDict[str, RunRecords](lambda _, run: run.record.account.key_id)
        self._bytes = dict[str, int]()
        self._items = dict[str, list[Item]]()
        self._kept_ids = set[str]()
        self._running_answers = dict[str, AnswerBuffer]()
        self._feedback = dict[str, dict[str, Feedback]]()
        self._claims = FairDict[tuple[str, str], Claim](lambda key, _: key[0])
        self._suspended = FairDict[str, tuple[int, RunRecords]](lambda _, it: it[1].record.account.key_id)
        self._call_ids = CallIds([secrets.token_bytes(SECRET_BYTES)])
        self._answers = FairDict[tuple[str, str], CachedAnswer](lambda key, _: key[0])
        self._listener = listener or StoreListener()

    def start(self) -> None:
        """Do nothing, because there is no other replica."""

    def keep(self, id: str, seq: int = 0) -> None:
        self._kept_ids.add(id)

    @property
    def n_unwritten(self) -> int:
        return 0

    def unwritten_bytes(self) -> Counter[str]:
        """Return no bytes, because this store writes nothing. `limits.records_bytes` bounds its memory."""
        return Counter()

    @property
    def is_away(self) -> bool:
        return False

    def forget(self, id: str) -> None:
        self._kept_ids.discard(id)

    async def wait_until_written(self, id: str) -> None:
        """Do nothing, because there is no other replica."""

    async def wait_while_late(self, id: str) -> None:
        """Do nothing, because nothing is written."""

    async def claim(self, claim: Claim) -> Claim:
        """See `RecordStore.claim`. At most `limits.records` claims are stored."""
        current = self._claims.setdefault((claim.account, claim.name), claim)
        self._claims.pop_down_to(self._limits().records)
        return current

    async def release(self, claim: Claim) -> None:
        if self._claims.get((claim.account, claim.name)) == claim:
            del self._claims[claim.account, claim.name]

    async def free(self, claim: Claim) -> bool:
        """Return False, because only this replica can have made the claim, and it has not ended."""
        return False

    async def find_answer(self, owner: str, request_hash: str) -> str | None:
        answer = self._answers.get((owner, request_hash))
        return answer.run_id if answer and answer.drop_us > now_us() else None

    async def keep_answer(self, answer: CachedAnswer) -> None:
        """See `RecordStore.keep_answer`. At most `limits.records` answers are stored."""
        key = (answer.owner, answer.request_hash)
        self._answers.pop(key, None)  # moves the key to the end, as the newest
        self._answers[key] = answer
        self._answers.pop_down_to(self._limits().records)

    def note(self, record: Record, seq: int, event: Event) -> None:
        """See `RecordStore.note`. Events share their texts with the record, so their size is not counted."""
        if record.parent is not None:
            return
        if isinstance(event, AnswerDelta) and record.id not in self._kept_ids:
            if record.id not in self._running_answers:
                self._running_answers[record.id] = AnswerBuffer()
            self._running_answers[record.id].add(event)
            return
        if isinstance(event, StepRestarted):
            self._running_answers.pop(record.id, None)  # the restarted step sends its answer again
        items = self._items.setdefault(record.id, [])
        self._add(record.id, Item(len(items) + 1, record.id, event, None if items else record))

    async def watch(self, id: str) -> None:
        items, answer = self._items.get(id), self._running_answers.pop(id, None)
        if items is None or id in self._runs:
            return
        self._listener.on_watch(id)
        self._kept_ids.add(id)
        if answer is not None and (piece := answer.take()) is not None:
            self._add(id, Item(len(items) + 1, id, piece))

    def _add(self, id: str, item: Item) -> None:
        self._items[id].append(item)
        self._listener.on_items(id, (item,))

    async def put(self, records: RunRecords) -> None:
        limits = self._limits()
        id = records.record.id
        self._kept_ids.discard(id)
        self._running_answers.pop(id, None)
        self._runs[id], self._bytes[id] = records, weight(records)
        while len(self._runs) > limits.records:
            self._drop(self._runs.oldest())
        total_bytes = sum(self._bytes.values())
        while total_bytes > limits.records_bytes and (oldest := self._runs.oldest(self._weigh)) != id:
            total_bytes -= self._bytes[oldest]
            self._drop(oldest)
        self._listener.on_items(id, ())

    def _weigh(self, ids: Iterable[str]) -> int:
        return sum(self._bytes[id] for id in ids)

    def _drop(self, id: str) -> None:
        del self._runs[id], self._bytes[id]
        self._items.pop(id, None)
        self._feedback.pop(id, None)

    async def remove_texts(self, id: str) -> None:
        if id in self._runs:
            self._runs[id] = without_content(self._runs[id])
            self._bytes[id] = weight(self._runs[id])
            self._items.pop(id, None)
            entries = self._feedback.get(id, {})
            self._feedback[id] = {
                key: dataclasses.replace(each, comment="", expected="") for key, each in entries.items()
            }

    async def get(self, id: str) -> RunRecords | None:
        return self._find(id)

    async def info(self, id: str) -> RunInfo | None:
        records = self._find(id)
        return RunInfo.of(records, has_content=records.has_content) if records else None

    def _find(self, id: str) -> RunRecords | None:
        records = self._runs.get(id)
        if records is None:
            under_way = fold_items(id, self._items.get(id, ()))
            stores = under_way is not None and under_way.record.task.permit.stores
            return replace(under_way, has_content=stores) if under_way else None
        if records.record.status == "waiting" and self._drop_us(id) < now_us():
            return replace(records, record=replace(records.record, status="expired"))
        return records

    def _drop_us(self, id: str) -> int:
        """Return the end of a run's wait in microseconds since 1970, or 0 if the run does not wait."""
        return self._suspended[id][0] if id in self._suspended else 0

    async def newest(
        self, limit: int, caller: Caller, before: Place | None = None, run_filter: RunFilter = ANY_RUN
    ) -> RunPage:
        visible = [
            run
            async for run in in_slices(list(self._runs.values()))
            if caller.sees(run.record.account)
            and (before is None or place(run.record) < before)
            and dataclasses.replace(run_filter, rated=False).matches(run)
            and (not run_filter.rated or run.record.id in self._feedback)
        ]
        newest = heapq.nlargest(limit + 1, visible, key=lambda run: place(run.record))
        return page_of([for_list(run) async for run in in_slices(newest)], limit)

    async def costs(self, query: CostQuery, caller: Caller) -> CostReport:
        """See `RecordStore.costs`. The report has only the runs in memory."""
        visible = [run for run in self._runs.values() if caller.sees(run.record.account)]
        return CostReport(
            group_rows([row async for run in in_slices(visible) for row in rows_of(run)], query)
        )

    async def events(self, id: str, after: int) -> EventPage:
        items = [item for item in self._items.get(id, []) if item.seq > after]
        run = self._runs.get(id)
        waits = run is not None and run.record.status == "waiting" and self._drop_us(id) >= now_us()
        return EventPage(items, is_over=run is not None and not waits)

    async def give_feedback(self, feedback: Feedback) -> None:
        """See `RecordStore.give_feedback`. Feedback is dropped with its run."""
        self._feedback.setdefault(feedback.run_id, {})[feedback.key_id] = feedback

    async def feedback(self, id: str) -> list[Feedback]:
        return sorted(self._feedback.get(id, {}).values(), key=lambda each: each.made_us)

    async def cancel(self, id: str) -> bool:
        """See `RecordStore.cancel`. Cancels only runs that wait, because there is no other replica."""
        _, records = self._suspended.pop(id, (0, None))
        if records is not None:
            await self._end_waiting(records, "cancelled")
        return records is not None

    async def _end_waiting(self, records: RunRecords, status: RunStatus) -> None:
        ended = replace(records, record=replace(records.record, status=status))
        await self.put(kept_part(ended))
        self._listener.on_wait_end(ended)

    async def suspend(self, records: RunRecords, wait_s: float) -> None:
        """See `RecordStore.suspend`. Also ends expired runs. At most `limits.records` runs can wait."""
        at_us = now_us()
        for id in [id for id, (drop_us, _) in self._suspended.items() if drop_us <= at_us]:
            await self._end_waiting(self._suspended.pop(id)[1], "expired")
        await self.put(kept_part(records))
        self._suspended[records.record.id] = at_us + int(wait_s * 1_000_000), records
        self._suspended.pop_down_to(self._limits().records)

    async def find_waiting(self, id: str) -> RunRecords | None:
        drop_us, records = self._suspended.get(id, (0, None))
        return records if drop_us >= now_us() else None

    async def resume(self, id: str) -> RunRecords | None:
        if self._drop_us(id) < now_us():
            return None
        _, records = self._suspended.pop(id)
        self._runs.pop(id, None)
        self._bytes.pop(id, None)
        self.keep(id)
        return records

    async def call_ids(self) -> CallIds:
        return self._call_ids

    async def aclose(self) -> None:
        """See `RecordStore.aclose`."""


def place(record: Record) -> Place:
    return made_us(record), record.id


def page_of(runs: Iterable[RunRecords], limit: int, end: Place | None = None) -> RunPage:
    """Return a page with the newest of the runs. `end` is where the next one starts if all fit."""
    newest = sorted(runs, key=lambda run: place(run.record), reverse=True)
    shown = newest[:limit]
    return RunPage(shown, place(shown[-1].record) if len(newest) > limit else end)
