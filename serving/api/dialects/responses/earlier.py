"""What a request only refers to: earlier responses and their items, rebuilt from the records of their runs."""

from collections.abc import Mapping, Sequence
from typing import Any

from conductor.errors import BadTask, quote
from conductor.model.messages import Message
from conductor.run.record import Record, RunRecords
from serving.api.dialect import FindRun
from serving.api.dialects.responses.ids import response_of, run_id
from serving.api.dialects.responses.items import Transcript, items_of
from serving.api.dialects.responses.schema import Referred
from serving.api.dialects.responses.stream import show
from serving.api.request import Podium

Json = dict[str, Any]
References = Mapping[str, Sequence[Message]]


def is_response(records: RunRecords | None) -> bool:
    """Whether a run is a response that was to be stored, and whose texts are still here."""
    if records is None or not records.has_content:
        return False
    echo = records.record.task.echo
    return bool(echo) and echo["response"]["store"]


def own_conversation(record: Record) -> tuple[Message, ...]:
    """The conversation of a response, its instructions left out: they hold for one response only."""
    has_instructions = bool(record.task.echo["response"]["instructions"])
    return record.task.conversation[has_instructions:]


async def conversation_of(
    sent: Referred, find: FindRun, references: References
) -> tuple[tuple[Message, ...], int]:
    """The turns before, and those that were sent; and how many are before.

    Raises:
        BadTask: the response before is not there, or is not over.
    """
    transcript = Transcript()
    if sent.previous_response_id is not None:
        transcript.messages += await _earlier(sent.previous_response_id, find)
    n_earlier = len(transcript.messages)
    transcript.add(sent.input, lambda item, at: _referred(references, item, at))
    if not transcript.messages:
        raise BadTask("input: there is nothing in it to answer. Send at least one message.", param="input")
    return tuple(transcript.messages), n_earlier


async def _earlier(response: str, find: FindRun) -> tuple[Message, ...]:
    """All turns of a response, its answer included."""
    id, param = run_id(response), "previous_response_id"
    records = await find(id) if id else None
    if records is None or not is_response(records):
        raise BadTask(f"{param}: no response {quote(response)} is kept here.", param=param)
    record = records.record
    if record.status in ("running", "detached"):
        raise BadTask(f"{param}: {quote(response)} is still in progress.", param=param)
    answer = (Message.of("assistant", record.answer),) if record.answer else ()
    return own_conversation(record) + answer


async def find_references(items: str | Sequence[Json], find: FindRun) -> References:
    """The messages of each of our items that `items` refers to. Reasoning is none."""
    if isinstance(items, str):
        return {}
    ids = {str(item.get("id")) for item in items if item.get("type") == "item_reference"}
    return {id: await _find_item(id, find) for id in ids}


async def _find_item(id: str, find: FindRun) -> Sequence[Message]:
    """What an item is in a conversation; nothing where it is not here."""
    response = response_of(id)
    run = run_id(response) if response and not id.startswith("rs_") else None
    records = await find(run) if run else None
    if response is None or records is None or not is_response(records):
        return ()
    record = records.record
    shown = show(records, record.task.echo, record.task.tools, Podium(), str, response)
    for item in (*input_items(record, response), *shown["output"]):
        if item["id"] == id:
            transcript = Transcript()
            transcript.add([item], lambda _id, _at: ())
            return transcript.messages
    return ()


def input_items(record: Record, response: str) -> list[Json]:
    """What was sent for a response, as items, oldest first."""
    items: list[Json] = []
    for message in own_conversation(record)[record.task.echo["n_earlier"] :]:
        items += items_of(message, len(items), response)
    return items


def _referred(references: References, id: str, at: str) -> Sequence[Message]:
    """What a reference stands for.

    Raises:
        BadTask: it is no reasoning, and is not here.
    """
    messages = references.get(id, ())
    if not messages and not id.startswith("rs_"):
        raise BadTask(f"{at}.id: no item {quote(id)} is kept here.", param=f"{at}.id")
    return messages
