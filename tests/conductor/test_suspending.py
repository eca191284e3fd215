"""Runs whose steps call the client's tools: suspended, stored, and continued with the results."""

import asyncio
import json
from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from conductor.errors import StoreUnavailable
from conductor.model.messages import Message, Native, Text, Tool, ToolCall, ToolChoice, ToolResult, Toolset
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from conductor.run.codec import dump, load
from conductor.run.events import RunFinished, RunSuspended, Terminal
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import RunRecords
from conductor.run.task import Task
from conductor.run.team import Team
from conductor.run.turns import ClientReply, GivenResult
from tests.conductor.team import Player, a_plan, ask_for, line, member, team

TOOLS = Toolset((Tool("read", "Reads a file.", {"type": "object"}),))


def calling(*arguments: str, words: str = "", native: Native | None = None) -> list[Delta]:
    calls = tuple(ToolCall(f"native-{text}", "read", text) for text in arguments)
    return [
        Delta(words),
        Delta(tool_calls=calls, native=native, finish=FinishReason.TOOL_CALLS, usage=Usage(10, 2)),
    ]


def reply_with(*results: tuple[int, str], messages: Sequence[Message] = ()) -> ClientReply:
    texts = [GivenResult(number, ToolResult("", (Text(text),))) for number, text in results]
    return ClientReply(tuple(texts), tuple(messages))


async def run(
    team_of: Team,
    task: Task | None = None,
    records: RunRecords | None = None,
    client_reply: ClientReply | None = None,
) -> tuple[RunRecords, Terminal]:
    """Run one segment in one process. Return its stored records, or its current ones, and its last event."""
    snapshots: list[RunRecords] = []

    async def write_down(records: RunRecords) -> None:
        snapshots.append(load(RunRecords, json.loads(json.dumps(dump(records)))))

    if task is not None:
        opened = open_run(team_of, task, "wf_1", write_down=write_down)
    else:
        assert records is not None
        opened = resume_run(team_of, records, given=client_reply, write_down=write_down)
    async with opened as going:
        *_, last = [event async for event in going.events()]
        if isinstance(last, RunSuspended):
            assert len(snapshots) == 1, "it is written down before anybody is told"
            assert snapshots[0].record == going.record
        assert isinstance(last, Terminal)
        return (snapshots[0] if snapshots else going.records), last


def numbers(end: Terminal) -> list[int]:
    assert isinstance(end, RunSuspended), end
    return [call.number for call in end.calls]


async def test_a_step_continues_its_own_conversation_with_tool_results() -> None:
    native = Native("a", "", {"signed": "thought"})
    a = Player("a", calling("x", "y", words="Let me look.", native=native), ["It is 7."])
    task = ask_for(plan=a_plan(("a", ())), tools=TOOLS)
    records, end = await run(team(a), task)
    assert isinstance(end, RunSuspended)
    assert (numbers(end), end.text) == ([0, 1], "Let me look.")
    assert records.record.status == "waiting"

    user_messages = (Message.of("user", "And hurry."),)
    records, end = await run(
        team(a), records=records, client_reply=reply_with((1, "two"), (0, "one"), messages=user_messages)
    )
    assert isinstance(end, RunFinished)
    assert end.answer == "It is 7."
    first, second = a.calls
    assert second.messages[: len(first.messages)] == first.messages
    turn, answered, hurry = second.messages[len(first.messages) :]
    assert (turn.text, turn.native) == ("Let me look.", native)
    assert [call.arguments for call in turn.tool_calls] == ["x", "y"]
    assert [(result.id, result.text) for result in answered.tool_results] == [
        ("native-x", "one"),
        ("native-y", "two"),
    ]
    assert hurry == user_messages[0]
    assert records.record.usage == Usage(10, 2) + Usage(10, 1)
    assert records.record.segment_usage == Usage(10, 1)


async def test_parallel_steps_wait_together_and_continue_with_their_own_results() -> None:
    a, b = Player("a", calling("x"), ["A"]), Player("b", calling("y"), ["B"])
    c = Player("c", lambda call: [call.messages[-1].text])
    plan = a_plan(("a", ()), ("b", ()), ("c", (0, 1)))
    records, end = await run(team(a, b, c), ask_for(plan=plan, tools=TOOLS))
    assert numbers(end) == [0, 1]
    assert not c.calls
    by_step = {step.turns[0].calls[0].number: step.worker for step in records.record.plans[0].steps[:2]}
    number_of = {worker: number for number, worker in by_step.items()}
    records, end = await run(
        team(a, b, c), records=records, client_reply=reply_with((number_of["b"], "for b"))
    )
    assert numbers(end) == [number_of["a"]], "only what is missing"
    assert (len(a.calls), len(b.calls)) == (1, 2)
    records, end = await run(
        team(a, b, c), records=records, client_reply=reply_with((number_of["a"], "for a"))
    )
    assert isinstance(end, RunFinished)
    assert "A" in end.answer
    assert "B" in end.answer
    assert "for a" not in end.answer, "others see what their access list gives them"
    assert (len(a.calls), len(b.calls), len(c.calls)) == (2, 2, 1)


async def test_a_step_continues_only_with_all_of_its_tool_results() -> None:
    a = Player("a", calling("x", "y"), ["done"])
    records, end = await run(team(a), ask_for(plan=a_plan(("a", ())), tools=TOOLS))
    records, end = await run(team(a), records=records, client_reply=reply_with((0, "one")))
    assert numbers(end) == [1]
    assert len(a.calls) == 1
    records, end = await run(team(a), records=records, client_reply=reply_with((1, "two")))
    assert isinstance(end, RunFinished)


async def test_an_unused_step_does_not_keep_the_run_waiting() -> None:
    conductor = Player("lead", [line(0), line(1)])
    a, b = Player("a", calling("x")), Player("b", ["answer"])
    records, end = await run(team(a, b, conductor=conductor), ask_for(tools=TOOLS))
    assert isinstance(end, RunFinished)
    assert records.record.plans[0].steps[0].status == "not_needed"
    assert records.record.usage == Usage(10, 2) + Usage(10, 2) + Usage(10, 1), "each call once"
    assert records.record.n_unmetered_calls == 0


async def test_a_step_may_have_no_tools() -> None:
    conductor = Player(
        "lead", ['{"worker": 0, "subtask": "x", "access": [], "tools": false}', line(1, access=[0])]
    )
    a, b = Player("a", ["A"]), Player("b", ["B"])
    await run(team(a, b, conductor=conductor), ask_for(tools=TOOLS))
    assert not a.calls[0].tools
    assert b.calls[0].tools == TOOLS
    assert "read: Reads a file." in conductor.calls[0].messages[-1].text


async def test_a_required_tool_applies_to_the_answering_steps_first_turn() -> None:
    must = Toolset(TOOLS.tools, ToolChoice("required"))
    a, b = Player("a", ["A"]), Player("b", calling("x"), ["B"])
    plan = a_plan(("a", ()), ("b", (0,)))
    records, _ = await run(team(a, b), ask_for(plan=plan, tools=must))
    await run(team(a, b), records=records, client_reply=reply_with((0, "one")))
    modes = [call.tools.choice.mode for call in (*a.calls, *b.calls)]
    assert modes == ["auto", "required", "auto"]


async def test_an_inner_run_suspends_and_continues() -> None:
    conductor = Player("lead", [line("team")], [line("a")])
    a = Player("a", calling("x"), ["inner answer"])
    records, end = await run(team(a, conductor=conductor), ask_for(tools=TOOLS, depth=1))
    assert numbers(end) == [0]
    records, end = await run(
        team(a, conductor=conductor), records=records, client_reply=reply_with((0, "one"))
    )
    assert isinstance(end, RunFinished)
    assert end.answer == "inner answer"
    assert len(conductor.calls) == 2
    assert a.calls[1].messages[-1].tool_results[0].text == "one"


async def test_further_rounds_continue_after_tools() -> None:
    conductor = Player("lead", [line(0)], [line(1)])
    a, b = Player("a", calling("x"), ["first"]), Player("b", calling("y"), ["second"])
    teams = team(a, b, conductor=conductor)
    records, _ = await run(teams, ask_for(tools=TOOLS, rounds=2))
    records, end = await run(teams, records=records, client_reply=reply_with((0, "one")))
    assert numbers(end) == [1]
    records, end = await run(teams, records=records, client_reply=reply_with((1, "two")))
    assert isinstance(end, RunFinished)
    assert end.answer == "second"
    assert records.record.segment_usage == Usage(10, 1), "only the call after the last results"


async def test_earlier_tool_calls_of_the_client_are_sent_unchanged_to_tool_steps() -> None:
    history = (
        Message.of("user", "what is in x?"),
        Message("assistant", (ToolCall("call_1", "read", "x"),)),
        Message("tool", (ToolResult("call_1", (Text("seven"),)),)),
    )
    a = Player("a", ["ok"])
    plan = a_plan(("a", ()))
    deaf = replace(plan, steps=(replace(plan.steps[0], tools=False),))
    for task in (Task(history, plan=plan), Task(history, plan=deaf, tools=TOOLS)):
        await run(team(a), task)
        messages = a.calls[-1].messages
        assert not any(message.tool_calls or message.tool_results for message in messages)
        assert "seven" in "".join(message.text for message in messages)
    for task in (
        Task(history, plan=plan, tools=TOOLS),
        Task(history, plan=plan, plan_source="worker"),
    ):
        await run(team(a), task)
        assert a.calls[-1].messages[1].tool_calls == history[1].tool_calls


@pytest.mark.parametrize("calls_tools", [False, None])
async def test_a_worker_without_tool_support_gets_no_tools(calls_tools: bool | None) -> None:
    a = Player("a", ["ok"])
    teams = Team(None, {"a": member(a, calls_tools=calls_tools)})
    await run(teams, ask_for(plan=a_plan(("a", ())), tools=TOOLS))
    assert bool(a.calls[0].tools) == (calls_tools is None)


async def test_the_clock_stops_while_a_run_waits() -> None:
    a = Player("a", calling("x"), ["done"])
    records, _ = await run(team(a), ask_for(plan=a_plan(("a", ())), tools=TOOLS, deadline_s=0.5))
    await asyncio.sleep(0.6)
    records, end = await run(team(a), records=records, client_reply=reply_with((0, "one")))
    assert isinstance(end, RunFinished)
    assert records.record.wall_s < 0.5


async def test_a_run_is_stored_even_if_its_client_disconnects_during_the_write() -> None:
    is_writing, may_end, snapshots = asyncio.Event(), asyncio.Event(), list[RunRecords]()

    async def write_down(records: RunRecords) -> None:
        is_writing.set()
        await may_end.wait()
        snapshots.append(records)

    a = Player("a", calling("x"), ["done"])
    task = ask_for(plan=a_plan(("a", ())), tools=TOOLS)
    async with open_run(team(a), task, "wf_1", write_down=write_down) as going:
        await is_writing.wait()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
    assert snapshots == [going.records]
    assert going.record.status == "waiting"


async def test_a_run_that_cannot_be_stored_fails_even_without_its_client() -> None:
    is_writing, may_end = asyncio.Event(), asyncio.Event()

    async def write_down(records: RunRecords) -> None:
        is_writing.set()
        await may_end.wait()
        raise StoreUnavailable("The store is away.")

    a = Player("a", calling("x"), ["done"])
    task = ask_for(plan=a_plan(("a", ())), tools=TOOLS)
    async with open_run(team(a), task, "wf_1", write_down=write_down) as going:
        await is_writing.wait()
        asyncio.get_running_loop().call_later(0.01, may_end.set)
    assert going.record.status == "failed"
    assert going.record.usage == Usage(10, 2), "it is told what was paid"
