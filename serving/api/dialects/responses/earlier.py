"""Lookup of the earlier responses and items that a request refers to. They are rebuilt from the records of
their runs.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from conductor.errors import BadTask, quote
from conductor.model.messages import Message
from conductor.run.record import RunRecords
from serving.api.dialect import CallId, EarlierRuns
from serving.api.dialects.responses.ids import response_of, run_of
from serving.api.dialects.responses.items import Transcript, items_of
from serving.api.dialects.responses.schema import Referred
from serving.api.dialects.responses.segments import (
    as_of,
    echo_of_newest,
    input_messages,
    own_conversation,
    part_of,
    turns_of,
)
from serving.api.dialects.responses.stream import show
from serving.api.request import ApiRequest, Podium, check_size

Json = dict[str, Any]
References = Mapping[str, Sequence[Message]]
UNDER_WAY = ("running", "detached")
LOOKS, POLL_S = 10, 0.05
"""Number and interval of lookups for a response that another replica may be about to store."""


async def find_response(response: str, earlier: EarlierRuns, *, is_over: bool = False) -> RunRecords | None:
    """Return the run of a response as it was when the response ended, or None if the caller has no such
    response.

    Another replica may have sent the response and not stored it yet. This waits up to half a second until it
    is stored and, with `is_over`, until it has ended.

    Raises:
        StoreUnavailable: the store is unreachable.
    """
    named = run_of(response)
    if named is None:
        return None
    response_records: RunRecords | None = None
    for _ in range(LOOKS):
        records = await earlier.find(named[0])
        response_records = as_of(records, named[1]) if records else None
        if records is not None and not _is_stored(response_records or records):
            return None
        if response_records is not None and not (is_over and response_records.record.status in UNDER_WAY):
            break
        await asyncio.sleep(POLL_S)
    return response_records


def _is_stored(records: RunRecords) -> bool:
    record = records.record
    return records.has_content and bool(record.task.echo) and echo_of_newest(record)["response"]["store"]


async def conversation_of(request: Referred, earlier: EarlierRuns) -> tuple[tuple[Message, ...], int]:
    """Return all messages of the conversation, earlier turns first, and the number of earlier messages.

    Raises:
        BadTask: something that the request refers to is missing or still in progress.
        StoreUnavailable: the store is unreachable.
    """
    transcript = Transcript()
    if request.conversation and request.previous_response_id is not None:
        message = "conversation cannot be combined with previous_response_id. Send only one of them."
        raise BadTask(message, param="conversation")
    if request.conversation:
        transcript.add(answerable(await earlier.items(request.conversation)), lambda _item, _at: ())
        check_size(transcript.messages, "conversation")
    if request.previous_response_id is not None:
        transcript.messages += await _turns_before(request.previous_response_id, earlier)
    n_earlier = len(transcript.messages)
    references = await _find_references(request.input, earlier)
    transcript.add(request.input, lambda item, at: _find_referenced(references, item, at))
    check_size(transcript.messages, "input")
    if not transcript.messages:
        raise BadTask("input has no messages. Send at least one.", param="input")
    return tuple(transcript.messages), n_earlier


def answerable(items: Sequence[Json]) -> list[Json]:
    """Return `items` without tool results whose call is missing. A call is missing if it is too old or was
    deleted.
    """
    calls = {
        item["call_id"] for item in items if str(item.get("type")).endswith("_call") and "call_id" in item
    }
    return [
        item
        for item in items
        if not str(item.get("type")).endswith("_output") or item.get("call_id") in calls
    ]


async def _turns_before(response: str, earlier: EarlierRuns) -> tuple[Message, ...]:
    param = "previous_response_id"
    records = await find_response(response, earlier, is_over=True)
    if records is None:
        raise BadTask(f"{param}: response {quote(response)} not found.", param=param)
    if records.record.status in UNDER_WAY:
        raise BadTask(
            f"{param}: response {quote(response)} is still in progress. Retry when it has ended.", param=param
        )
    return turns_of(records.record, await earlier.call_id(records.record.id))


async def _find_references(items: str | Sequence[Json], earlier: EarlierRuns) -> References:
    """Return the messages of each item that `items` refers to, by id. Reasoning items have none."""
    if isinstance(items, str):
        return {}
    by_response = dict[str, list[str]]()
    for id in {str(item.get("id")) for item in items if item.get("type") == "item_reference"}:
        if not id.startswith("rs_") and (response := response_of(id)):
            by_response.setdefault(response, []).append(id)
    messages = dict[str, Sequence[Message]]()
    for response, ids in by_response.items():
        messages |= await _find_items(response, ids, earlier)
        await asyncio.sleep(0)  # lookups of records in memory do not yield to other tasks
    return messages


async def _find_items(response: str, ids: Sequence[str], earlier: EarlierRuns) -> References:
    """Return the messages of the items of one response, by id. Missing items are left out."""
    records = await find_response(response, earlier)
    if records is None:
        return {}
    call_id = await earlier.call_id(records.record.id)
    response_items = (*input_items(records, call_id), *show_again(records, call_id)["output"])
    items, messages = {item["id"]: item for item in response_items}, dict[str, Sequence[Message]]()
    for id in ids:
        if id in items:
            transcript = Transcript()
            transcript.add([items[id]], lambda _item, _at: ())
            messages[id] = transcript.messages
    return messages


def show_again(records: RunRecords, call_id: CallId) -> Json:
    """Rebuild a response from the record of its run."""
    request = request_of(records)
    return show(records, request.echo, request.tools, request.podium, call_id)


def request_of(records: RunRecords, after: int = -1) -> ApiRequest:
    """Rebuild the request of a run from its record, with the fields that responses repeat. For `after`, see
    `ResponseWriter`.
    """
    task = records.record.task
    newest = echo_of_newest(records.record)
    podium, echo = Podium(progress=newest["progress"]), {**newest, "after": after}
    return ApiRequest(
        task.model, task.conversation, task.sampling, None, podium, True, True, task.tools, echo=echo
    )


def input_items(records: RunRecords, call_id: CallId) -> list[Json]:
    """Return the input items of the newest response of a run, oldest first."""
    record, part = records.record, part_of(records.record)
    messages = own_conversation(record)[record.task.echo["n_earlier"] :]
    if part:
        resume_input = record.segments[part - 1].given
        messages = input_messages(resume_input, call_id) if resume_input else ()
    kinds = {
        pending.number: pending.call.kind for pending in record.calls_of_tools(range(record.n_tool_calls))
    }
    custom = {call_id(number) for number, kind in kinds.items() if kind == "custom"}
    items: list[Json] = []
    for message in messages:
        items += items_of(message, len(items), record.id, part, custom)
    return items


def _find_referenced(references: References, id: str, at: str) -> Sequence[Message]:
    """Return the messages of the item that a reference names.

    Raises:
        BadTask: the item is missing, and is not reasoning.
    """
    messages = references.get(id, ())
    if not messages and not id.startswith("rs_"):
        raise BadTask(f"{at}.id: item {quote(id)} not found.", param=f"{at}.id")
    return messages
