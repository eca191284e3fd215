"""Tool turns of ended runs, kept for later turns of the conversation: ownership and limits."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import Overloaded
from conductor.model.messages import Message, Native, PendingCall, Text, ToolCall, ToolResult
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import GivenResult, StepTurn
from serving.sessions import earlier_turns
from serving.sessions.earlier_turns import EarlierTurns
from serving.settings.sections import LimitSettings
from serving.store.memory_store import MemoryStore
from serving.store.store import StoreListener
from serving.store.tool_ids import CallName
from tests.states import until

MINE, THEIRS = Account("key_1", "team"), Account("key_2", "team")
RUNS = [f"wf_{n:032x}" for n in range(40)]
QUESTION = Message.of("user", "Mend it.")


def store() -> MemoryStore:
    return MemoryStore(LimitSettings, StoreListener())


def turn_of(number: int, result: str = "R", thought: str = "signed") -> StepTurn:
    call = ToolCall(f"toolu_{number}", "read", '{"path": "a"}')
    reply = CallResult(
        "I read.",
        "a",
        "m",
        Usage(10, 5),
        None,
        FinishReason.TOOL_CALLS,
        native=Native("a", "", {"t": thought}),
    )
    results = (GivenResult(number, ToolResult(call.id, (Text(result),))),)
    return StepTurn(reply, (PendingCall(number, call),), results)


def run_of(id: str, conversation: Sequence[Message] = (QUESTION,), *turns: StepTurn, **step: Any) -> Record:
    steps = (
        StepRecord(
            0, "a", step.pop("subtask", ""), (), 0.0, "done", tuple(conversation), turns=turns, **step
        ),
    )
    plan = PlanRecord(0, 0, "worker", 0.0, ended_s=1.0, steps=steps)
    return Record(id, Task(tuple(conversation)), 1.0, account=MINE, plans=(plan,), status="finished")


async def sent_by(client: MemoryStore, record: Record, results: str = "R") -> list[Message]:
    """Return the conversation that a client sends after the run, with a new question."""
    ids, messages = await client.call_ids(), list(record.task.conversation)
    for turn in record.plans[0].steps[-1].turns:
        calls = [ToolCall(ids.sign(CallName(record.id, each.number)), "read", "{}") for each in turn.calls]
        messages += [Message("assistant", (Text("I read."), *calls))]
        messages += [Message("tool", (ToolResult(call.id, (Text(results),)),)) for call in calls]
    return [*messages, Message.of("assistant", "Done."), Message.of("user", "And now?")]


async def test_turns_are_found_by_the_clients_call_ids() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0), turn_of(1))
    turns.remember(record)
    messages = await sent_by(client, record)
    by_call_id = await turns.find(messages, MINE)
    assert list(by_call_id) == [call.id for message in messages for call in message.tool_calls]
    assert list(by_call_id.values()) == list(record.plans[0].steps[0].turns)
    assert await turns.find(messages[:1], MINE) == {}


async def test_the_ids_of_a_turn_are_in_the_order_of_its_calls() -> None:
    client, first, second = store(), turn_of(0), turn_of(1)
    both = replace(first, calls=first.calls + second.calls, results=first.results + second.results)
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), both)
    turns.remember(record)
    ids = await client.call_ids()
    calls = [ToolCall(ids.sign(CallName(record.id, number)), "read", "{}") for number in (1, 0)]
    results = [Message("tool", (ToolResult(call.id, (Text("R"),)),)) for call in calls]
    messages = [
        QUESTION,
        Message("assistant", (Text("I read."), *calls)),
        *results,
        Message.of("user", "And?"),
    ]
    assert list(await turns.find(messages, MINE)) == [call.id for call in reversed(calls)]


async def test_turns_of_another_key_or_with_another_beginning_are_not_found() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0))
    turns.remember(record)
    messages = await sent_by(client, record)
    assert await turns.find(messages, THEIRS) == {}
    assert await turns.find([Message.of("system", "Be brief."), *messages], MINE) == {}
    assert await turns.find([Message.of("user", "Break it."), *messages[1:]], MINE) == {}


async def test_turns_after_a_changed_result_are_not_found() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0), turn_of(1))
    turns.remember(record)
    assert len(await turns.find(await sent_by(client, record, "[cleared]"), MINE)) == 1


async def test_a_turn_after_another_assignment_is_not_found() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0), subtask="Look first.")
    turns.remember(record)
    assert await turns.find(await sent_by(client, record), MINE) == {}


async def test_a_run_is_omitted_if_an_earlier_one_cannot_be_sent_unchanged() -> None:
    client = store()
    first = run_of(RUNS[0], (QUESTION,), turn_of(0))
    between = await sent_by(client, first)
    second = run_of(RUNS[1], between, turn_of(0))
    (step,) = second.plans[0].steps
    sent = [
        replace(each, parts=(ToolCall("toolu_0", "read", "{}"),)) if each.tool_calls else each
        for each in step.prompt
    ]
    second = replace(second, plans=(replace(second.plans[0], steps=(replace(step, prompt=tuple(sent)),)),))
    messages = await sent_by(client, second)
    both, only_second = EarlierTurns(client), EarlierTurns(client)
    for record in (first, second):
        both.remember(record)
    only_second.remember(second)
    assert len(await both.find(messages, MINE)) == 2
    assert await only_second.find(messages, MINE) == {}


async def test_runs_of_another_router_are_read_from_the_store_once() -> None:
    client = store()
    record = run_of(RUNS[0], (QUESTION,), turn_of(0))
    await client.put(RunRecords(record))
    turns, messages = EarlierTurns(client), await sent_by(client, record)
    assert len(await turns.find(messages, MINE)) == 1
    await client.remove_texts(record.id)
    assert len(await turns.find(messages, MINE)) == 1
    assert await EarlierTurns(client).find(messages, MINE) == {}


@pytest.mark.parametrize("thought", ["[secret removed]", "my [e-mail address removed] is"])
async def test_redacted_turns_are_not_sent(thought: str) -> None:
    client = store()
    record = run_of(RUNS[0], (QUESTION,), turn_of(0, thought=thought))
    await client.put(RunRecords(record))
    assert await EarlierTurns(client).find(await sent_by(client, record), MINE) == {}


@pytest.mark.parametrize("is_redacted", [False, True])
async def test_turns_that_the_store_has_redacted_are_not_sent_from_memory(is_redacted: bool) -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0))
    thought = "my [e-mail address removed] is" if is_redacted else "signed"
    stored = run_of(RUNS[0], (QUESTION,), turn_of(0, thought=thought))
    turns.remember(record)
    turns.note_stored(stored)
    assert bool(await turns.find(await sent_by(client, record), MINE)) is not is_redacted


async def test_turns_whose_texts_were_deleted_are_not_sent_from_memory() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0))
    turns.remember(record)
    turns.forget(record.id)
    turns.forget(RUNS[1])
    assert await turns.find(await sent_by(client, record), MINE) == {}


async def test_turns_expire_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(earlier_turns, "DROPS_S", 0.01)
    client = store()
    turns, record = EarlierTurns(client, lambda: 0.0), run_of(RUNS[0], (QUESTION,), turn_of(0))
    turns.remember(record)
    n_before = sys.getrefcount(record.plans[0].steps[0].turns)
    await until(lambda: sys.getrefcount(record.plans[0].steps[0].turns) < n_before)
    turns.remember(record)
    assert await turns.find(await sent_by(client, record), MINE) == {}


async def test_turns_whose_texts_have_expired_are_not_sent() -> None:
    client = store()
    turns, record = EarlierTurns(client), run_of(RUNS[0], (QUESTION,), turn_of(0))
    turns.remember(replace(record, created=time.time() - 100))
    messages = await sent_by(client, record)
    assert len(await turns.find(messages, MINE, content_s=200)) == 1
    assert await turns.find(messages, MINE, content_s=50) == {}


class CountingStore(MemoryStore):
    n_reads = 0

    async def get(self, id: str) -> RunRecords | None:
        self.n_reads += 1
        return await super().get(id)


async def test_a_missing_run_is_looked_up_in_one_turn_only() -> None:
    client = CountingStore(LimitSettings, StoreListener())
    turns, messages = EarlierTurns(client), await sent_by(client, run_of(RUNS[0], (QUESTION,), turn_of(0)))
    for _ in range(3):
        assert await turns.find(messages, MINE) == {}
    assert client.n_reads == 1 + earlier_turns.LOOKS


async def test_a_run_too_large_for_memory_is_not_loaded() -> None:
    client = CountingStore(LimitSettings, StoreListener())
    record = run_of(RUNS[0], (QUESTION,), turn_of(0))
    await client.put(RunRecords(record))

    @asynccontextmanager
    async def loading(_id: str, _account: Account) -> AsyncGenerator[None]:
        if not n_free:
            raise Overloaded("There is no memory.")
        yield

    turns, messages, n_free = EarlierTurns(client, loading=loading), await sent_by(client, record), 0
    assert await turns.find(messages, MINE) == {}
    assert client.n_reads == 0
    n_free = 1
    assert len(await turns.find(messages, MINE)) == 1


async def test_a_key_with_many_turns_evicts_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    client = store()
    monkeypatch.setattr(earlier_turns, "MOST_BYTES", 6 * earlier_turns.ENTRY_BYTES)
    turns = EarlierTurns(client)
    theirs = replace(run_of(RUNS[0], (QUESTION,), turn_of(0)), account=THEIRS)
    for record in (theirs, *(run_of(id, (QUESTION,), turn_of(0)) for id in RUNS[1:])):
        turns.remember(record)
    assert len(await turns.find(await sent_by(client, theirs), THEIRS)) == 1


async def test_the_newest_run_may_be_stored_a_little_later() -> None:
    client = store()
    record = run_of(RUNS[0], (QUESTION,), turn_of(0))
    messages = await sent_by(client, record)
    finding = asyncio.create_task(EarlierTurns(client).find(messages, MINE))
    await asyncio.sleep(0.06)
    await client.put(RunRecords(record))
    assert len(await finding) == 1


async def test_a_run_continued_elsewhere_is_read_again() -> None:
    client = store()
    record = run_of(RUNS[0], (QUESTION,), turn_of(0), turn_of(1))
    (step,) = record.plans[0].steps
    begun = replace(step, turns=step.turns[:1])
    turns = EarlierTurns(client)
    turns.remember(replace(record, plans=(replace(record.plans[0], steps=(begun,)),)))
    await client.put(RunRecords(record))
    assert len(await turns.find(await sent_by(client, record), MINE)) == 2


async def test_memory_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    client = store()
    monkeypatch.setattr(earlier_turns, "MOST_BYTES", 6 * earlier_turns.ENTRY_BYTES)
    turns = EarlierTurns(client)
    records = [run_of(id, (QUESTION,), turn_of(0, "R" * 100)) for id in RUNS]
    for record in records:
        turns.remember(record)
    newest_first = records[::-1]
    counts = [len(await turns.find(await sent_by(client, each, "R" * 100), MINE)) for each in newest_first]
    assert 0 < sum(counts) <= 6
    assert counts[0] == 1


async def test_ids_of_other_servers_are_ignored() -> None:
    call = ToolCall("call_" + "A" * 40, "read", "{}")
    messages = [QUESTION, Message("assistant", (call,)), Message("tool", (ToolResult(call.id),)), QUESTION]
    assert await EarlierTurns(store()).find(messages, MINE) == {}
