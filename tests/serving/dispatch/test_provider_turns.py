"""Conversations with tool calls across the deployments of a worker, and at a stop sequence."""

from collections.abc import AsyncGenerator

from conductor.model.call import Call
from conductor.model.messages import Message, Native, Text, ToolCall, ToolResult
from conductor.model.reply import Delta, FinishReason
from conductor.model.worker import Worker
from serving.dispatch.stop_sequences import cut_at
from serving.dispatch.target import Target
from serving.workers.native_turns import Origin
from serving.workers.scripted import ScriptedWorker
from tests.serving.dispatch.routes import deployed, dispatcher, target

CALLED = ToolCall("call_1", "read", '{"path": "a"}')


def talk(worker: str, account: str) -> tuple[Message, ...]:
    return (
        Message.of("user", "Mend it."),
        Message("assistant", (CALLED,), Native(worker, account, [1])),
        Message("tool", (ToolResult("call_1", (Text("empty"),)),)),
    )


def place(name: str) -> Target:
    return target(ScriptedWorker("w", [name]), name, slots=4, account=f"account-{name}")


async def ask(worker: Worker, call: Call) -> str:
    async with worker.open(call) as reply:
        async for _ in reply:
            pass
    return reply.deployment


async def test_a_conversation_continues_at_its_deployment():
    places = [place("a"), place("b"), place("c")]
    worker = dispatcher(deployed(*places))
    call = Call(talk("w", "account-b"))
    assert {await ask(worker, call) for _ in range(20)} == {"b"}
    places[1].health.fail(skip_s=60)
    assert "b" not in {await ask(worker, call) for _ in range(5)}


async def test_a_conversation_of_another_worker_may_use_any_deployment():
    worker = dispatcher(deployed(place("a"), place("b")))
    call = Call(talk("v", "account-b"))
    assert {await ask(worker, call) for _ in range(40)} == {"a", "b"}


async def test_calls_after_a_stop_sequence_are_not_made():
    async def deltas() -> AsyncGenerator[Delta]:
        yield Delta("one END two")
        yield Delta(finish=FinishReason.TOOL_CALLS, tool_calls=(CALLED,), native=Native("w", "", [1]))

    got = [delta async for delta in cut_at(["END"], deltas())]
    assert "".join(delta.text for delta in got) == "one "
    assert not any(delta.tool_calls or delta.native for delta in got)
    assert got[-1].finish is FinishReason.STOP


def test_only_the_deployments_own_native_turns_are_kept():
    own = Origin("w", "one")
    conversation = (*talk("w", "two")[:2], *talk("w", "two")[2:], Message.of("user", "On."))
    first = own.messages(Call(conversation))
    assert not any(message.tool_calls or message.tool_results for message in first)
    again = ToolCall("call_2", "read", "{}")
    turn = Message("assistant", (again,), own.sign([2]))
    results = Message("tool", (ToolResult("call_2", (Text("x"),)), ToolResult("call_1", (Text("late"),))))
    second = own.messages(Call((*conversation, turn, results)))
    assert second[: len(first)] == first
    assert second[len(first)] == turn
    assert [result.id for result in second[len(first) + 1].tool_results] == ["call_2"]
    assert "late" in second[-1].text


def test_other_deployments_calls_are_kept_if_the_provider_accepts_them():
    own = Origin("w", "one")
    messages = own.messages(Call(talk("v", "")), keep_foreign=True)
    assert [bool(message.tool_calls) for message in messages] == [False, True, False]
    assert not any(message.native for message in messages)
    unanswered = own.messages(Call((*talk("v", "")[:2], Message.of("user", "On."))), keep_foreign=True)
    assert not any(message.tool_calls for message in unanswered)
