"""Responses of a run: one until the run first waits for tools, and one more each time that it gets results.

Each response is a segment of the run (`conductor/run/turns.py`). The ids of responses and of their items are
derived from the id of the run, so that they need not be stored. The id of a response ends in its number.
"""

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from conductor.model.messages import Message, Part, Text, ToolCall, ToolResult
from conductor.run.record import Record, RunRecords
from conductor.run.turns import ClientReply, Segment
from serving.api.dialect import CallId

RESPONSE = re.compile(r"resp_([0-9a-f]{32})([0-9a-f]{2,6})")
ITEM = re.compile(r"(rs|msg|fc|ctc|cmp)_([0-9a-f]{32})([0-9a-f]{2,6})_i?\d{1,6}")
MOST_PART = 16**6 - 1


def part_of(record: Record) -> int:
    """Return the number of a run's newest response, from 0."""
    return sum(segment.given is not None for segment in record.segments)


def echo_changes(first: Mapping[str, Any], echo: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return how a later request's echo (`resource.echo_of`) differs from the first one's."""
    fields = {name: value for name, value in echo["response"].items() if value != first["response"].get(name)}
    return {name: echo[name] for name in ("progress", "shows_encrypted")} | {"response": fields}


def echo_of_newest(record: Record) -> Mapping[str, Any]:
    """Return the echo of the request for a run's newest response."""
    first, part = record.task.echo, part_of(record)
    client_reply = record.segments[part - 1].given if part else None
    if client_reply is None or not client_reply.echo:
        return first
    return {**first, **client_reply.echo, "response": first["response"] | client_reply.echo["response"]}


def as_of(records: RunRecords, part: int) -> RunRecords | None:
    """Return the run as it was when the response `part` ended, or None if the response has not started."""
    record = records.record
    if part > part_of(record):
        return None
    if part == part_of(record):
        return records
    last = replace(record.segments[part], given=None)
    segments = (*record.segments[:part], last)
    return replace(records, record=replace(record, status="waiting", segments=segments, finish=None))


def own_conversation(record: Record) -> tuple[Message, ...]:
    """Return a run's first conversation without instructions, which apply to one request only."""
    has_instructions = bool(record.task.echo["response"]["instructions"])
    return record.task.conversation[has_instructions:]


def turns_of(record: Record, call_id: CallId) -> tuple[Message, ...]:
    """Return all turns up to a response, its answer included, with the client's call ids. `record` is the run
    as it was when the response ended; see `as_of`.
    """
    turns = list(own_conversation(record))
    earlier_calls = set[int]()
    for segment in record.segments:
        turns += _calls_messages(record, segment, earlier_calls, call_id)
        earlier_calls.update(segment.calls)
        turns += input_messages(segment.given, call_id) if segment.given else ()
    if record.status == "finished" and record.answer:
        turns.append(Message.of("assistant", record.answer))
    return tuple(turns)


def input_messages(client_reply: ClientReply, call_id: CallId) -> tuple[Message, ...]:
    """Return the messages that a client sent to resume a run, with the client's call ids."""
    results = tuple(
        ToolResult(call_id(each.number), each.result.parts, each.result.is_error)
        for each in client_reply.results
    )
    return (*((Message("tool", results),) if results else ()), *client_reply.said)


def _calls_messages(
    record: Record, segment: Segment, earlier_calls: set[int], call_id: CallId
) -> list[Message]:
    """Return the turn in which a run called tools, without calls that its client has already received."""
    parts: list[Part] = [Text(segment.text)] if segment.text else []
    for pending in record.calls_of_tools(segment.calls):
        if pending.number not in earlier_calls:
            call = pending.call
            parts.append(
                ToolCall(call_id(pending.number), call.name, call.arguments, call.kind, call.namespace)
            )
    return [Message("assistant", tuple(parts))] if parts else []


def response_id(run_id: str, part: int = 0) -> str:
    """Return the id of one response of a run. `part` is the number of the response, from 0."""
    return f"resp_{run_id.removeprefix('wf_')}{min(part, MOST_PART):02x}"


def run_of(response: str) -> tuple[str, int] | None:
    """Return a response's run and number, or None if `response` has another format."""
    match = RESPONSE.fullmatch(response)
    return (f"wf_{match[1]}", int(match[2], 16)) if match else None


def item_id(kind: str, response: str, index: int, *, is_input: bool = False) -> str:
    """Return the id of a response's item: prefix `kind`, and `index` in the output or the input."""
    return f"{kind}_{response.removeprefix('resp_')}_{'i' if is_input else ''}{index}"


def response_of(item: str) -> str | None:
    """Return the id of an item's response, or None if the id does not have this format."""
    match = ITEM.fullmatch(item)
    return f"resp_{match[2]}{match[3]}" if match else None
