"""Tool turns of earlier runs, as they were sent to their workers.

Providers cache and sign what they received: their own ids, thoughts and arguments. A client sends Podium's ids, no
thoughts, and may write arguments again. The next turn of a conversation therefore contains the turns of earlier runs
as their workers received them. Otherwise the prefix would change at the first tool call, and its cache would be lost.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from hashlib import blake2b
from math import inf

from conductor.errors import BadTask, Overloaded, StoreUnavailable
from conductor.model.messages import Message, ToolResult, contents_of
from conductor.plan.prompt_parts import with_stable_system
from conductor.run.plan_record import StepRecord
from conductor.run.record import Account, Record
from conductor.run.turns import StepTurn
from serving.fairness import FairDict, add_to
from serving.sessions.run_admission import Loading, bytes_of
from serving.store.prompt_caches import digest_of, digests_of
from serving.store.store import RecordStore
from serving.store.tool_ids import OURS

MOST_BYTES = 64_000_000
"""Maximum size of all turns in memory."""
ENTRY_BYTES = 500
"""Size of a run in memory, in addition to its turns."""
MOST_LOADED = 32
"""Maximum number of runs that one request loads from the store."""
LOADS_S = 1.0
"""Time limit for the runs that one request loads, in seconds."""
LOOKS, POLL_S = 3, 0.05
"""Number and interval of further lookups of the newest run, which another router may be about to store."""
MISSING_S = 30.0
"""Seconds after which a run that was not in the store is looked up again."""
DROPS_S = 60.0
"""Seconds between two removals of old turns from memory."""
REDACTED = " removed]"
"""End of each mark that replaces a redacted text."""


@dataclass(frozen=True, slots=True)
class _ToolRun:
    """Run whose answering step called tools.

    Args:
        created: time at which the run began, in seconds since 1970.
        n_before: number of messages of the run's conversation.
        before: hash of these messages, as the client sent them.
        ids_before: hash of the ids of their tool calls, as they were sent to the worker.
        n_calls: number of tool calls that the run had made.
        n_bytes: size in memory.
    """

    account: Account
    created: float
    n_before: int
    before: str
    ids_before: str
    turns: tuple[StepTurn, ...]
    n_calls: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class _Entry:
    """Entry of the memory.

    Args:
        owner: id of the key whose conversation it is.
        run: run, or None if its turns cannot be sent again.
        drop_s: time from which the entry is ignored, by `time.monotonic`.
    """

    owner: str
    run: _ToolRun | None
    drop_s: float

    @property
    def n_bytes(self) -> int:
        return ENTRY_BYTES if self.run is None else self.run.n_bytes


class EarlierTurns:
    """Tool turns of runs that have ended or wait for tools, by run.

    They are in memory, without redaction, up to `MOST_BYTES`. If there are more, the key with the most bytes loses
    the run that it has not used for the longest time. Turns of other routers are read from the run store.

    Args:
        store: run store.
        keep_s: returns for how many seconds turns stay in memory.
        loading: see `RunAdmission.loading`.
    """

    def __init__(
        self,
        store: RecordStore,
        keep_s: Callable[[], float] = lambda: 3600.0,
        loading: Loading = lambda _id, _account: nullcontext(),
    ) -> None:
        self._store, self._keep_s, self._loading = store, keep_s, loading
        self._entries = FairDict[str, _Entry](lambda _, entry: entry.owner)
        self._bytes = Counter[str]()
        """Size of the entries of each key."""
        self._dropping: asyncio.TimerHandle | None = None

    def remember(self, record: Record) -> None:
        """Add the turns of a run, if its answering step has called tools."""
        run = _tool_run(record)
        if run is not None and not _is_redacted(run.turns):
            self._put(record.id, record.account.key_id, run)

    def note_stored(self, record: Record) -> None:
        """Forget the turns of a run if they were redacted in its stored form, `record`."""
        step = _tool_step(record)
        if step is not None and _is_redacted(step.turns):
            self.forget(record.id)

    def forget(self, id: str) -> None:
        """Remove the turns of a run whose texts were deleted or redacted."""
        entry = self._entries.get(id)
        if entry is not None:
            self._put(id, entry.owner, None)

    async def find(
        self, messages: Sequence[Message], account: Account, content_s: float = inf
    ) -> Mapping[str, StepTurn]:
        """Return the turns that can be sent again, for `Team.earlier_turns`.

        Only turns of the same key are returned, and only if the messages before them have not changed.

        Args:
            messages: conversation that the client has sent.
            account: account of the request.
            content_s: seconds after which the texts of a run must be deleted.
        """
        calls = [call.id for message in messages for call in message.tool_calls if OURS.fullmatch(call.id)]
        if not calls:
            return {}
        messages = with_stable_system(messages)
        by_run = await self._runs_of(calls)
        loaded = await self._load_missing(by_run, account)
        results = {result.id: result for message in messages for result in message.tool_results}
        digests, sent_ids, ids = list(digests_of(messages)), blake2b(digest_size=16), dict[str, str]()
        turns, at, oldest = dict[str, StepTurn](), 0, time.time() - content_s
        for run_id, numbers in by_run.items():
            run = loaded.get(run_id)
            if run is None or run.account.key_id != account.key_id or run.created < oldest:
                continue
            if not at <= run.n_before <= len(messages):
                continue
            for message in messages[at : run.n_before]:
                _add_ids(sent_ids, (ids.get(call.id, call.id) for call in message.tool_calls))
            at = run.n_before
            before = digests[at - 1] if at else ""
            if (before, sent_ids.hexdigest()) != (run.before, run.ids_before):
                continue
            for turn in run.turns:
                client_ids = [numbers.get(call.number, "") for call in turn.calls]
                if not all(client_ids):
                    break
                turns |= dict.fromkeys(client_ids, turn)
                ids |= {id: call.call.id for id, call in zip(client_ids, turn.calls, strict=True)}
                if not _has_results(turn, numbers, results):
                    break  # what follows was written after other results
        return turns

    async def _runs_of(self, calls: Iterable[str]) -> dict[str, dict[int, str]]:
        """Return the client's ids of tool calls by run and number. Ids of other servers are omitted."""
        try:
            ids = await self._store.call_ids()
        except StoreUnavailable:
            return {}
        by_run = dict[str, dict[int, str]]()
        for call in calls:
            with suppress(BadTask):  # another server's
                if (name := ids.read(call)) is not None:
                    by_run.setdefault(name.run_id, {})[name.number] = call
        return by_run

    async def _load_missing(
        self, by_run: Mapping[str, Mapping[int, str]], account: Account
    ) -> dict[str, _ToolRun | None]:
        """Return the runs that are known. Load those that are not in memory, or were not there at their end, oldest
        first.
        """
        missing = [id for id, numbers in by_run.items() if not self._has(id, max(numbers))][:MOST_LOADED]
        try:
            async with asyncio.timeout(LOADS_S):
                for id in missing:
                    n_looks = 1 + LOOKS if id == [*by_run][-1] else 1
                    await self._load(id, account, max(by_run[id]), n_looks)
        except (TimeoutError, StoreUnavailable, Overloaded):
            pass  # the client's history is sent
        entries = {id: entry for id in by_run if (entry := self._get(id)) is not None}
        for id, entry in entries.items():
            self._drop(id)
            self._add(id, entry)  # to the end
        return {id: entry.run for id, entry in entries.items()}

    def _has(self, id: str, number: int) -> bool:
        entry = self._get(id)
        return entry is not None and (entry.run is None or entry.run.n_calls > number)

    def _get(self, id: str) -> _Entry | None:
        entry = self._entries.get(id)
        return None if entry is None or entry.drop_s <= time.monotonic() else entry

    async def _load(self, id: str, account: Account, number: int, n_looks: int) -> None:
        """Load a run that has made the tool call `number`."""
        for look in range(n_looks):
            await asyncio.sleep(POLL_S if look else 0)
            async with self._loading(id, account):
                records = await self._store.get(id)
            if records is not None and records.record.n_tool_calls > number:
                run = _tool_run(records.record) if records.has_content else None
                self._put(id, account.key_id, run if run and not _is_redacted(run.turns) else None)
                return
        if self._get(id) is None:
            self._put(id, account.key_id, None, MISSING_S)  # it may be stored later

    def _put(self, id: str, key_id: str, run: _ToolRun | None, most_s: float = inf) -> None:
        self._drop(id)
        owner = run.account.key_id if run else key_id
        self._add(id, _Entry(owner, run, time.monotonic() + min(self._keep_s(), most_s)))
        while self._bytes.total() > MOST_BYTES:
            self._drop(self._entries.oldest(self._size))
        if self._dropping is None:
            self._dropping = asyncio.get_running_loop().call_later(DROPS_S, self._drop_old)

    def _size(self, ids: Collection[str]) -> int:
        return self._bytes[self._entries[next(iter(ids))].owner]

    def _add(self, id: str, entry: _Entry) -> None:
        self._entries[id] = entry
        self._bytes[entry.owner] += entry.n_bytes

    def _drop(self, id: str) -> None:
        entry = self._entries.pop(id, None)
        if entry is not None:
            add_to(self._bytes, entry.owner, -entry.n_bytes)

    def _drop_old(self) -> None:
        """Remove old entries, also if no request uses the memory any more."""
        self._dropping = None
        for id in [id for id in self._entries if self._get(id) is None]:
            self._drop(id)
        if self._entries:
            self._dropping = asyncio.get_running_loop().call_later(DROPS_S, self._drop_old)


def _tool_step(record: Record) -> StepRecord | None:
    """Return the step that has written a run's answer after tool calls and the conversation alone, or None."""
    plan = record.answering_plan
    step = plan.steps[-1] if plan and plan.steps else None
    return None if step is None or not step.turns or step.subtask or step.access else step


def _tool_run(record: Record) -> _ToolRun | None:
    """Return the stored tool turns of a run, or None if the answer also used other steps or no tools."""
    step = _tool_step(record)
    if step is None:
        return None
    messages, ids = with_stable_system(record.task.conversation), blake2b(digest_size=16)
    _add_ids(ids, (call.id for message in step.prompt for call in message.tool_calls))
    return _ToolRun(
        record.account,
        record.created,
        len(messages),
        digest_of(messages),
        ids.hexdigest(),
        step.turns,
        record.n_tool_calls,
        ENTRY_BYTES + bytes_of(message for turn in step.turns for message in turn.messages),
    )


def _add_ids(digest: blake2b, ids: Iterable[str]) -> None:
    for id in ids:
        digest.update(f"{id}\0".encode("utf-8", "surrogatepass"))


def _has_results(turn: StepTurn, numbers: Mapping[int, str], results: Mapping[str, ToolResult]) -> bool:
    """Return whether the client's results of a turn are those that the worker received."""
    results_before = {each.number: each.result.text for each in turn.results}
    own = {number: results[id].text for number, id in numbers.items() if id in results}
    return all(results_before.get(call.number) == own.get(call.number) for call in turn.calls)


def _is_redacted(turns: Iterable[StepTurn]) -> bool:
    """Return whether a text of `turns` was redacted."""
    texts = contents_of(message for turn in turns for message in turn.messages)
    return any(isinstance(text, str) and REDACTED in text for text in texts)
