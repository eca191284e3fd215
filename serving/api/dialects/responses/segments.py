"""The responses that one run is: one until it first waits for tools, and one more for each time that it was sent
results. Each is a segment of the run (`conductor/run/turns.py`).
"""

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from conductor.model.messages import Message, Part, Text, ToolCall, ToolResult
from conductor.run.record import Record, RunRecords
from conductor.run.turns import Given, Segment
from serving.api.dialect import CallId


def part_of(record: Record) -> int:
    """The number of the newest response of a run, from 0."""
    return sum(segment.given is not None for segment in record.segments)


def changed_echo(first: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """What `echo`, of a later request of a run (`resource.echo_of`), has otherwise than that of its first."""
    fields = {name: value for name, value in echo["response"].items() if value != first["response"].get(name)}
    return {name: echo[name] for name in ("progress", "shows_encrypted")} | {"response": fields}


def echo_of_newest(record: Record) -> Mapping[str, Any]:
    """What the newest response of a run repeats of its own request."""
    first, part = record.task.echo, part_of(record)
    given = record.segments[part - 1].given if part else None
    if given is None or not given.echo:
        return first
    return {**first, **given.echo, "response": first["response"] | given.echo["response"]}


def as_of(records: RunRecords, part: int) -> RunRecords | None:
    """The run as it was when that response of it ended; None where it has not come to it."""
    record = records.record
    if part > part_of(record):
        return None
    if part == part_of(record):
        return records
    last = replace(record.segments[part], given=None)
    segments = (*record.segments[:part], last)
    return replace(records, record=replace(record, status="waiting", segments=segments, finish=None))


def own_conversation(record: Record) -> tuple[Message, ...]:
    """The conversation that a run began with, its instructions left out: they hold for one request only."""
    has_instructions = bool(record.task.echo["response"]["instructions"])
    return record.task.conversation[has_instructions:]


def turns_of(record: Record, call_id: CallId) -> tuple[Message, ...]:
    """All turns of a response, its answer included, with the client's ids. `record`: see `as_of`."""
    turns = list(own_conversation(record))
    told = set[int]()
    for segment in record.segments:
        turns += _calls_messages(record, segment, told, call_id)
        told.update(segment.calls)
        turns += given_messages(segment.given, call_id) if segment.given else ()
    if record.status == "finished" and record.answer:
        turns.append(Message.of("assistant", record.answer))
    return tuple(turns)


def given_messages(given: Given, call_id: CallId) -> tuple[Message, ...]:
    """What a client sent to go on, with its ids."""
    results = tuple(
        ToolResult(call_id(each.number), each.result.parts, each.result.is_error) for each in given.results
    )
    return (*((Message("tool", results),) if results else ()), *given.said)


def _calls_messages(record: Record, segment: Segment, told: set[int], call_id: CallId) -> list[Message]:
    """The turn in which a run called tools; those that it was told of before left out."""
    parts: list[Part] = [Text(segment.text)] if segment.text else []
    for pending in record.calls_of_tools(segment.calls):
        if pending.number not in told:
            call = pending.call
            parts.append(
                ToolCall(call_id(pending.number), call.name, call.arguments, call.kind, call.namespace)
            )
    return [Message("assistant", tuple(parts))] if parts else []
