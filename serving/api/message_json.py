"""Messages of a record as JSON: prompts as they were sent, and what passed between a step and its tools."""

from collections.abc import Iterable
from typing import Any

from conductor.model.messages import File, Message, Part, PendingCall, Text, ToolCall, ToolResult
from conductor.run.plan_record import StepRecord
from conductor.run.turns import Given, StepTurn

Json = dict[str, Any]
PICTURE_CHARS = 64
"""Of a picture's address: a `data:` one is shown by its beginning."""


def messages_json(messages: Iterable[Message]) -> list[Json]:
    """Prompts as they were sent."""
    return [_message(message) for message in messages]


def turns_json(step: StepRecord) -> Json:
    """A step's turns with its tools; nothing where it called none."""
    return {"turns": [_turn(turn) for turn in step.turns]} if step.turns else {}


def _turn(turn: StepTurn) -> Json:
    results = {each.number: each.result for each in turn.results}
    calls = [{**call_of_tool(each), **_result(results.get(each.number))} for each in turn.calls]
    return {
        "output": turn.result.output,
        "worker": turn.result.worker,
        "tool_calls": calls,
        "said": messages_json(turn.said),
        "called_s": _seconds(turn.called_s),
        "answered_s": _seconds(turn.answered_s),
    }


def _seconds(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s, 6)


def call_of_tool(pending: PendingCall) -> Json:
    """A call of a tool, as its step made it."""
    return {"number": pending.number, "name": pending.call.name, "arguments": pending.call.arguments}


def results_json(given: Given) -> list[Json]:
    """What a client sent to a run that waited."""
    return [{"number": each.number, **_result(each.result)} for each in given.results]


def _result(result: ToolResult | None) -> Json:
    if result is None:
        return {"result": None}
    return {"result": _words(result.parts)} | ({"is_error": True} if result.is_error else {})


def _message(message: Message) -> Json:
    return {"role": message.role, "content": _words(message.parts)}


def _words(parts: Iterable[Part]) -> str:
    return "\n".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    match part:
        case Text(text=text):
            return text
        case ToolCall():
            return f"[calls {part.name}: {part.arguments}]"
        case ToolResult():
            return f"[result of a tool{', an error' if part.is_error else ''}: {_words(part.parts)}]"
        case File():
            kind = "PDF" if part.text is None else "text"
            return f"[{part.name}: {kind}, {part.n_bytes} bytes]"
        case _:
            return f"[{part.url[:PICTURE_CHARS]}]"
