"""Prompt caches of conversations, shared between replicas for a limited time, and usable while the store is away."""

import asyncio
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from conductor.model.call import Sampling
from conductor.model.messages import NO_TOOLS, Message, PendingCall, Text, Tool, ToolCall, ToolResult, Toolset
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage
from conductor.plan.plan import Plan, Step
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record
from conductor.run.task import Task
from conductor.run.turns import GivenResult, StepTurn
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address, parse_address
from serving.database.clock import now_us
from serving.store import prompt_caches
from serving.store.prompt_caches import (
    KEEP_PROMPT,
    PromptCacheRow,
    PromptCaches,
    is_unchanged,
    lifetime_of,
    n_messages_read,
    row_ids,
    rows_of,
    tail_of,
)
from tests.serving.store.stores import open_stores

pytestmark = pytest.mark.postgresql

HOUR_US = 3_600_000_000


def row(worker: str = "a", at_us: int = 1, id: str = "c1", drop_us: int | None = None) -> PromptCacheRow:
    expiry_us = now_us() + HOUR_US if drop_us is None else drop_us
    return PromptCacheRow(id, worker, "eu", 3, "0123456789abcdef", 4_000, 120, 2, "1h", at_us, expiry_us)


async def read(caches: PromptCaches) -> list[PromptCacheRow]:
    """Return the rows of conversation `c1`, once the store has responded in time."""
    async with asyncio.timeout(30):
        while not (rows := await caches.find("c1", "key_1")):
            await asyncio.sleep(0.01)
    return rows


async def test_another_replica_finds_the_worker_of_the_last_turn(store_address: Address) -> None:
    async with open_stores(store_address) as (one, _), open_stores(store_address) as (other, _):
        mine, theirs = PromptCaches(one, patience_s=60), PromptCaches(other, patience_s=60)
        assert await mine.find("c1", "key_1") == []
        first = row()
        mine.keep(first, "key_1")
        await mine.flush()
        assert await read(theirs) == [first]
        newer, second = row(at_us=2), row("b", at_us=3)
        theirs.keep(newer, "key_1")
        theirs.keep(second, "key_1")
        await theirs.flush()
        assert {each.worker: each for each in await mine.find("c1", "key_1")} == {"a": newer, "b": second}
        assert await mine.find("c2", "key_1") == []


async def test_the_newest_row_wins_in_any_order(store_address: Address) -> None:
    async with open_stores(store_address) as (store, _):
        caches = PromptCaches(store, patience_s=60)
        newer = row(at_us=9)
        for each in (newer, row(at_us=5)):
            caches.keep(each, "key_1")
        await caches.flush()
        assert await caches.find("c1", "key_1") == [newer]
        writer = (await store.ledger()).writer
        await asyncio.gather(*(writer.do(KEEP_PROMPT, row(at_us=n)) for n in (7, 10, 8)))
        assert [each.written_us for each in await read(PromptCaches(store, patience_s=60))] == [10]


async def test_an_expired_row_is_ignored_and_then_removed(store_address: Address) -> None:
    async with open_stores(store_address) as (store, records):
        caches = PromptCaches(store, patience_s=60)
        caches.keep(row(drop_us=now_us() - 1), "key_1")
        caches.keep(row("b"), "key_1")
        await caches.flush()
        assert [each.worker for each in await caches.find("c1", "key_1")] == ["b"]
        assert await records.remove_old() == 1
        assert [each.worker for each in await read(PromptCaches(store, patience_s=60))] == ["b"]


async def test_rows_that_may_not_be_stored_stay_in_memory(store_address: Address) -> None:
    async with open_stores(store_address) as (store, _):
        caches = PromptCaches(store, patience_s=60)
        cache_row = row()
        caches.keep(cache_row, "key_1", stores=False)
        await caches.flush()
        assert await caches.find("c1", "key_1") == [cache_row]
        assert await PromptCaches(store, patience_s=60).find("c1", "key_1") == []


async def test_an_unavailable_store_delays_no_turn_and_memory_is_used() -> None:
    store = ReplicaStore(parse_address("postgresql://podium:x@127.0.0.1:1/x"))
    try:
        for caches in (PromptCaches(store, patience_s=60), PromptCaches()):
            cache_row = row()
            async with asyncio.timeout(3 * prompt_caches.PATIENCE_S + 1):
                caches.keep(cache_row, "key_1")
                assert await caches.find("c1", "key_1") == [cache_row]
    finally:
        await store.aclose()


async def test_memory_is_limited_and_evicts_the_least_recently_used_conversation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_caches, "MOST_IDS", 2)
    caches = PromptCaches()
    for id in ("c1", "c2"):
        caches.keep(row(id=id), "key_1")
    await caches.find("c1", "key_1")
    caches.keep(replace(row(), id="c3"), "key_1")
    assert [len(await caches.find(id, "key_1")) for id in ("c1", "c2", "c3")] == [1, 0, 1]


async def test_a_key_with_many_conversations_evicts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_caches, "MOST_IDS", 3)
    caches = PromptCaches()
    caches.keep(row(id="quiet"), "key_2")
    for n in range(9):
        caches.keep(row(id=f"c{n}"), "key_1")
    assert len(await caches.find("quiet", "key_2")) == 1
    assert [len(await caches.find(f"c{n}", "key_1")) for n in (6, 7, 8)] == [0, 1, 1]


def run_of(*conversation: Message, lifetime: Any = "", **fields: Any) -> Record:
    """Return a run of a conductor's model that worker `b` has answered."""
    options = WireOptions(prompt_cache=PromptCache(conversation="cv_1", lifetime=lifetime))
    task = Task(conversation, sampling=Sampling(options=options), **fields.pop("task", {}))
    usage = fields.pop("usage", Usage(4_000, 30))
    result = CallResult("Because.", "b", "m", usage, None, FinishReason.STOP, deployment="eu")
    step = StepRecord(0, "a", "", (), 0.0, "done", conversation, result)
    plan = PlanRecord(0, 0, "conductor", 0.0, "c", ended_s=1.0, steps=(step,))
    return Record("wf_1", task, 1_000.0, plans=(plan,), wall_s=2.5, **({"status": "finished"} | fields))


def alternating_turns(*words: str) -> tuple[Message, ...]:
    return tuple(Message.of("user" if n % 2 == 0 else "assistant", each) for n, each in enumerate(words))


def test_a_runs_row_is_about_the_worker_that_answered() -> None:
    (cache_row,) = rows_of(run_of(*alternating_turns("Why?", "Word " * 40, "And now?")), 60)
    assert (
        cache_row.worker,
        cache_row.deployment,
        cache_row.tokens,
        cache_row.turns,
        cache_row.n_messages,
    ) == (
        "b",
        "eu",
        4_000,
        2,
        3,
    )
    assert cache_row.answer_tokens == (50 + 30) // 2
    assert (cache_row.written_us, cache_row.drop_us, cache_row.lifetime) == (1_002_500_000, 1_062_500_000, "")
    assert [cache_row.id] == row_ids(
        PromptCache(conversation="cv_1"), alternating_turns("Why?", "Something else.")
    )
    assert cache_row.tail == tail_of(alternating_turns("?", "", "And now?"))
    marked = replace_parts(alternating_turns("Why?")[0], "1h")
    runs = (run_of(*alternating_turns("Why?"), lifetime="5m"), run_of(marked))
    assert [row.lifetime for each in runs for row in rows_of(each, 60)] == ["5m", "1h"]


@pytest.mark.parametrize(
    ("keep_s", "cache", "expected_s"),
    [
        (60, PromptCache(), 60),
        (60, PromptCache(lifetime="1h"), 3600),
        (7200, PromptCache(lifetime="1h"), 7200),
        (3600, PromptCache(retention="24h"), 86_400),
        (60, PromptCache(ttl="30m"), 1800),
    ],
)
def test_a_row_is_remembered_as_long_as_its_cache_lasts(
    keep_s: float, cache: PromptCache, expected_s: float
) -> None:
    record = run_of(*alternating_turns("Why?"))
    options = WireOptions(prompt_cache=msgspec.structs.replace(cache, conversation="cv_1"))
    task = msgspec.structs.replace(record.task, sampling=Sampling(options=options))
    (cache_row,) = rows_of(msgspec.structs.replace(record, task=task), keep_s)
    assert cache_row.drop_us - cache_row.written_us == expected_s * 1_000_000


def test_a_run_has_a_row_for_each_worker_that_has_read_the_conversation() -> None:
    record = run_of(*alternating_turns("Why?"), task={"tools": READ})
    (plan,) = record.plans
    result = CallResult("So.", "c", "m", Usage(5_000, 10), None, FinishReason.STOP)
    first = msgspec.structs.replace(plan.steps[0], result=result, first_token_s=0.5)
    late = msgspec.structs.replace(
        first, result=msgspec.structs.replace(result, worker="d"), first_token_s=9.0
    )
    untold = msgspec.structs.replace(first, result=msgspec.structs.replace(result, worker="e"), tools=False)
    plans = (msgspec.structs.replace(plan, steps=(first, late, untold, *plan.steps)),)
    rows = {row.worker: row for row in rows_of(msgspec.structs.replace(record, plans=plans), 60)}
    assert set(rows) == {"b", "c", "d"}, "a step without tools has another prefix"
    assert [rows["c"].tokens, rows["c"].written_us] == [5_000, 1_000_500_000]
    assert max(rows.values(), key=lambda row: row.written_us).worker == "b", "it gave the answer"
    assert is_unchanged(rows["c"], alternating_turns("Why?", "Because.", "And now?"), READ)


def replace_parts(message: Message, cache: Any) -> Message:
    return Message(
        message.role, tuple(Text(part.text, cache) for part in message.parts if isinstance(part, Text))
    )


def test_a_caches_lifetime_starts_when_the_last_calls_answer_begins() -> None:
    record = run_of(*alternating_turns("Why?"))
    (plan,) = record.plans
    spoke = msgspec.structs.replace(plan.steps[0], first_token_s=0.5)
    calls = (PendingCall(0, ToolCall("t1", "read", "{}")),)
    turn = StepTurn(CallResult("", "b", "m", None, None, FinishReason.TOOL_CALLS), calls, answered_s=40.0)
    for step, at_s in ((spoke, 0.5), (msgspec.structs.replace(spoke, turns=(turn,)), 40.0)):
        plans = (msgspec.structs.replace(plan, steps=(step,)),)
        (cache_row,) = rows_of(msgspec.structs.replace(record, plans=plans), 60)
        assert cache_row.written_us == int((1_000 + at_s) * 1e6)


def test_the_clients_breakpoints_determine_the_lifetime() -> None:
    for mark, lifetime in (("ephemeral", "5m"), ("5m", "5m"), ("1h", "1h")):
        marked = run_of(replace_parts(alternating_turns("Why?")[0], mark), lifetime="1h")
        assert lifetime_of(marked.task) == lifetime
    tools = Toolset((Tool("read", cache="1h"),))
    assert lifetime_of(msgspec.structs.replace(run_of(*alternating_turns("Why?")).task, tools=tools)) == "1h"
    assert lifetime_of(run_of(*alternating_turns("Why?"), lifetime="1h").task) == "1h"


READ = Toolset((Tool("read", parameters={"type": "object"}),))


def reading(id: str, text: str) -> tuple[Message, Message]:
    """A tool call and its result."""
    call = Message("assistant", (ToolCall(id, "read", "{}"),))
    return call, Message("tool", (ToolResult(id, (Text(text),)),))


def with_turns(record: Record, *texts: list[list[str]]) -> Record:
    """Return the record with a step for each of `texts`, which has the results of each of its turns."""
    (plan,) = record.plans
    steps = tuple(
        msgspec.structs.replace(plan.steps[0], index=index, turns=tuple(map(turn_of, results)))
        for index, results in enumerate(texts)
    )
    return msgspec.structs.replace(record, plans=(msgspec.structs.replace(plan, steps=steps),))


def turn_of(texts: list[str]) -> StepTurn:
    """A turn with a tool call for each text, whose result it is. The result is missing if the text is empty."""
    calls = tuple(PendingCall(n, ToolCall(f"p{n}", "read", "{}")) for n in range(len(texts)))
    results = tuple(
        GivenResult(n, ToolResult(f"p{n}", (Text(text),))) for n, text in enumerate(texts) if text
    )
    return StepTurn(CallResult("", "b", "m", Usage(9, 9), None, None), calls, results)


@pytest.mark.parametrize(
    ("steps", "n_read"),
    [
        ([[]], 1),
        ([[["One."]]], 3),
        ([[["One."], ["Two.", "Three."]]], 6),
        ([[["One."], ["Two.", ""]]], 3),
        ([[["One."], ["Two.", "Three."]], []], 1),
    ],
    ids=["no tools", "a turn", "two turns", "a turn that waits", "turns of another step"],
)
def test_a_row_counts_the_messages_that_the_last_call_has_read(
    steps: list[list[list[str]]], n_read: int
) -> None:
    record = with_turns(run_of(*alternating_turns("Why?"), task={"tools": READ}), *steps)
    row = rows_of(record, 60)[-1]
    two = (*reading("t2", "Two."), reading("t3", "Three.")[1])
    later = (
        *reading("t1", "One."),
        *two,
        Message.of("assistant", "So."),
        *alternating_turns("And?", "Yes.", "Why?"),
    )
    assert is_unchanged(row, (*alternating_turns("Why?"), *later), READ)
    assert n_messages_read(row, (*alternating_turns("Why?"), *later)) == n_read


def test_a_message_with_more_results_than_the_last_call_has_read_is_not_counted() -> None:
    (row,) = rows_of(with_turns(run_of(*alternating_turns("Why?"), task={"tools": READ}), [["One."]]), 60)
    call, message = reading("t1", "One.")
    both = Message("tool", (*message.parts, *reading("t2", "Two.")[1].parts))
    assert is_unchanged(row, (*alternating_turns("Why?"), call, both), READ)
    assert n_messages_read(row, (*alternating_turns("Why?"), call, both)) == 2


def test_a_prefix_is_unchanged_only_with_equal_messages_results_and_tools() -> None:
    before = (*alternating_turns("Why?"), *reading("t1", "Old."), *alternating_turns("Go on."))
    (row,) = rows_of(with_turns(run_of(*before, task={"tools": READ}), [["Two."], ["One."]]), 60)
    later = (
        *reading("t3", "One."),
        *reading("t2", "Two."),
        Message.of("assistant", "So."),
        *alternating_turns("And now?"),
    )
    assert is_unchanged(row, (*before, *later), READ), "in another order, and with other ids"
    assert is_unchanged(row, (*before, *later, *reading("t4", "New.")), READ)
    cleared = (*alternating_turns("Why?"), *reading("t1", "[cleared]"), *alternating_turns("Go on."))
    assert tail_of(cleared) == row.tail
    for messages, tools in [
        ((*cleared, *later), READ),
        ((*before, *reading("t3", "One."), *reading("t2", "[cleared]"), *later[-2:]), READ),
        ((*before, *later[2:]), READ),
        ((*before, *later), NO_TOOLS),
        (before, READ),
    ]:
        assert not is_unchanged(row, messages, tools)
    assert not is_unchanged(replace(row, prefix=""), (*before, *later), READ), "a row of an older router"


@pytest.mark.parametrize("fields", [
    {"status": "failed"}, {"status": "cancelled"}, {"plans": ()},
    {"task": {"plan": Plan((Step("a", ""),))}}, {"task": {"plan_only": True}},
])  # fmt: skip
def test_runs_without_an_answer_of_a_planned_worker_have_no_row(fields: Any) -> None:
    plans = fields.pop("plans", None) if "plans" in fields else None
    record = run_of(*alternating_turns("Why?"), **fields)
    assert not rows_of(record if plans is None else msgspec.structs.replace(record, plans=plans), 60)


def test_an_answer_without_input_tokens_has_no_row() -> None:
    record = run_of(*alternating_turns("Why?"), usage=Usage(output_tokens=30))
    assert not rows_of(record, 60)


def test_an_id_covers_the_conversation_and_its_first_user_message() -> None:
    def id_of(conversation: str, *messages: Message) -> str:
        (id,) = row_ids(PromptCache(conversation=conversation), messages)
        return id

    assert (
        len(
            {
                id_of("cv_1", *alternating_turns("Why?")),
                id_of("cv_2", *alternating_turns("Why?")),
                id_of("cv_1", *alternating_turns("How?")),
            }
        )
        == 3
    )
    assert id_of("cv_1", *alternating_turns("Why?", "Because.", "Oh?")) == id_of(
        "cv_1", *alternating_turns("Why?")
    )
    noon = Message.of("system", "It is 12:00.")
    assert id_of("cv_1", noon, *alternating_turns("Why?")) == id_of("cv_1", *alternating_turns("Why?"))


def test_a_conversations_name_is_an_id() -> None:
    cache = PromptCache(conversation="cv_1", is_named=True)
    one, other = (row_ids(cache, alternating_turns(words)) for words in ("Why?", "How?"))
    assert one[0] != other[0], "the agents of a session"
    assert one[1] == other[1] == "cv_1"
    record = run_of(*alternating_turns("Why?"))
    options = WireOptions(prompt_cache=cache)
    task = msgspec.structs.replace(record.task, sampling=Sampling(options=options))
    assert [row.id for row in rows_of(msgspec.structs.replace(record, task=task), 60)] == one
