"""The tools that a script calls: which reply a conversation is at, and whether its own turns come back unchanged."""

from collections.abc import Sequence
from dataclasses import dataclass

from conductor.errors import WorkerRefused
from conductor.model.messages import Message, Native, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A call of a tool: its name, and its arguments as text."""

    name: str
    arguments: str


def own_turns(worker: str, messages: Sequence[Message]) -> list[Native]:
    """The turns of `messages` that this worker wrote.

    Raises:
        WorkerRefused: one of them was changed on its way, as providers refuse it of theirs.
    """
    turns: list[Native] = []
    for message in messages:
        if message.native is None or message.native.worker != worker:
            continue
        if message.native.payload != _payload(message.native.payload["reply"], message.tool_calls):
            raise WorkerRefused(f"{worker}: a turn of its own came back changed.", worker=worker)
        turns.append(message.native)
    return turns


def calls_of(
    worker: str, reply: int, calls: Sequence[ScriptedCall], offered: Sequence[Tool], n_before: int
) -> tuple[tuple[ToolCall, ...], Native | None]:
    """The calls of a reply, of those tools that are offered, and the turn as it has to come back.

    Args:
        worker: who calls.
        reply: which one it is, from 0.
        calls: of the script.
        offered: tools.
        n_before: how many turns of its own there were; ids count on.
    """
    tools = {tool.name: tool for tool in offered}
    known = [(call, tools[call.name]) for call in calls if call.name in tools]
    made = tuple(
        ToolCall(f"{worker}-{n_before}-{n}", call.name, call.arguments, tool.kind, tool.namespace)
        for n, (call, tool) in enumerate(known)
    )
    return made, Native(worker, "", _payload(reply, made)) if made else None


def _payload(reply: int, calls: Sequence[ToolCall]) -> dict[str, object]:
    return {"reply": reply, "calls": [[call.id, call.name, call.arguments] for call in calls]}
