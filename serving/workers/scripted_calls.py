"""Tool calls of scripted workers. A call's turn records its reply, which shows how far a conversation is."""

from collections.abc import Sequence
from dataclasses import dataclass

from conductor.errors import WorkerRefused
from conductor.model.messages import Message, Native, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """Scripted tool call."""

    name: str
    arguments: str
    """Arguments as text."""


def own_turns(worker: str, messages: Sequence[Message]) -> list[Native]:
    """Return the turns of `messages` that this worker wrote.

    Raises:
        WorkerRefused: a turn was changed. Real providers reject that as well.
    """
    turns: list[Native] = []
    for message in messages:
        if message.native is None or message.native.worker != worker:
            continue
        if message.native.payload != _payload(message.native.payload["reply"], message.tool_calls):
            raise WorkerRefused(f"{worker}: one of its earlier turns was changed.", worker=worker)
        turns.append(message.native)
    return turns


def calls_of(
    worker: str, reply: int, calls: Sequence[ScriptedCall], offered: Sequence[Tool], n_before: int
) -> tuple[tuple[ToolCall, ...], Native | None]:
    """Return a reply's calls of offered tools, and the turn as it has to be sent back.

    Args:
        worker: the worker's name.
        reply: the index of the reply, from 0.
        calls: the scripted calls of the reply.
        offered: the tools of the request.
        n_before: the number of the worker's earlier turns, which makes the ids unique.
    """
    tools = {tool.name: tool for tool in offered}
    offered_calls = [(call, tools[call.name]) for call in calls if call.name in tools]
    tool_calls = tuple(
        ToolCall(f"{worker}-{n_before}-{n}", call.name, call.arguments, tool.kind, tool.namespace)
        for n, (call, tool) in enumerate(offered_calls)
    )
    return tool_calls, Native(worker, "", _payload(reply, tool_calls)) if tool_calls else None


def _payload(reply: int, calls: Sequence[ToolCall]) -> dict[str, object]:
    return {"reply": reply, "calls": [[call.id, call.name, call.arguments] for call in calls]}
