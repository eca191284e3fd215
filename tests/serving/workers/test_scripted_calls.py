"""Scripted tool calls, as written in settings."""

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.messages import Message, PendingCall, Text, Tool, ToolResult, Toolset
from conductor.model.reply import CallResult, FinishReason
from conductor.model.worker import Worker
from conductor.run.turns import GivenResult, StepTurn, conversation
from serving.clients import build_client
from serving.settings.settings import parse

TOOLS = Toolset((Tool("read"), Tool("write")))
QUESTION = (Message.of("user", "what is in x?"),)
READS = {
    "calls": [{"name": "read", "arguments": {"path": "x"}}, {"name": "unknown"}],
    "text": "Let me look at what it says.",
}


def agent() -> Worker:
    settings = parse({"workers": [{"name": "a", "kind": "scripted", "replies": [READS, "It is 7."]}]})
    return build_client(settings.workers[0], settings, {}, {})


async def ask(worker: Worker, *messages: Message, tools: Toolset = TOOLS) -> CallResult:
    async with worker.open(Call((*QUESTION, *messages), tools=tools)) as reply:
        async for _ in reply:
            pass
        return reply.result


def answered(result: CallResult, text: str) -> tuple[Message, ...]:
    """Return the turn that called tools, and the results."""
    calls = tuple(PendingCall(n, call) for n, call in enumerate(result.tool_calls))
    results = tuple(GivenResult(n, ToolResult(call.call.id, (Text(text),))) for n, call in enumerate(calls))
    return conversation([StepTurn(result, calls, results)])


async def test_the_script_calls_offered_tools_and_continues_with_their_results() -> None:
    worker = agent()
    first = await ask(worker)
    assert (first.output, first.finish) == ("Let me look at what it says.", FinishReason.TOOL_CALLS)
    assert [(call.name, call.arguments) for call in first.tool_calls] == [("read", '{"path": "x"}')]
    second = await ask(worker, *answered(first, "seven"))
    assert (second.output, second.tool_calls, second.finish) == ("It is 7.", (), FinishReason.STOP)
    assert (await ask(worker)).tool_calls == first.tool_calls, "each conversation begins the script anew"


async def test_without_tools_the_reply_without_calls_is_used() -> None:
    assert (await ask(agent(), tools=Toolset())).output == "It is 7."


async def test_a_changed_turn_of_its_own_is_rejected() -> None:
    worker = agent()
    turns, gave = answered(await ask(worker), "seven")
    other = replace(turns, parts=(replace(turns.tool_calls[0], arguments="{}"),))
    with pytest.raises(WorkerRefused, match="changes an earlier turn of"):
        await ask(worker, other, gave)
