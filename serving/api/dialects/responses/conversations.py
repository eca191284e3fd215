"""`/v1/conversations`: items that clients store between responses, and the responses of their runs.

Items of clients are validated like those of a request, and each gets a new id. Secrets are removed. If a
policy requires it, personal data is removed too.
"""

import asyncio
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from orjson import loads
from pydantic import Field
from starlette.responses import Response

from conductor.errors import BadTask, TooLarge, UnknownName, quote
from conductor.run.record import RunRecords
from serving.accounts.account_policy import Policies
from serving.accounts.caller import Caller
from serving.api.authentication import caller_of
from serving.api.dialects.read_body import LenientModel, PartCount, body_in_turn, read_body
from serving.api.dialects.responses.compaction import repacker
from serving.api.dialects.responses.earlier import CallersRuns, check_room, input_items, show_again
from serving.api.dialects.responses.items import Transcript, items_of
from serving.api.dialects.responses.schema import PACKED, remedy
from serving.api.dialects.responses.segments import part_of, response_id
from serving.api.record_json import dumps
from serving.api.request import NameText
from serving.api.respond import success
from serving.batches.kept_text import redactor_of
from serving.edge.checks import BodyBound
from serving.redaction.slices import READS, in_turns, turn
from serving.redaction.texts import json_in_steps, map_texts
from serving.sessions.service import Service
from serving.store.content import kept_part
from serving.store.conversations import (
    MOST_BYTES_OF_TEAM,
    MOST_OF_TEAM,
    Conversation,
    ConversationStore,
    new_conversation,
)
from serving.store.tool_ids import CallName

router = APIRouter(prefix="/v1/conversations")
Json = dict[str, Any]
MOST_AT_ONCE = 20
SECOND_US = 1_000_000
PREFIXES = {"reasoning": "rs", "compaction": "cmp", "compaction_summary": "cmp"}
ENDED_WELL = ("finished", "waiting")
MOST_KNOWN = 100
"""Number of the newest turns to remember as stored."""
Items = Annotated[list[Json], Field(fail_fast=True, max_length=MOST_AT_ONCE)]
Metadata = Annotated[
    dict[Annotated[NameText, Field(max_length=64)], Annotated[NameText, Field(max_length=512)]],
    Field(max_length=16),
]


class NewConversation(LenientModel):
    """Body of `POST /v1/conversations`."""

    items: Items | None = None
    metadata: Metadata | None = None


class NewItems(LenientModel):
    """Body of `POST /v1/conversations/{id}/items`."""

    items: Items


class NewMetadata(LenientModel):
    """Body of `POST /v1/conversations/{id}`."""

    metadata: Metadata | None


@router.post("")
async def create(request: Request) -> Response:
    """Create a conversation, with up to 20 items."""
    caller, store = caller_of(request), _store(request)
    CallersRuns(request.app.state.service, caller).check_keeps()
    body = read_body(NewConversation, await body_in_turn(request) or b"{}", remedy)
    items = await new_items(body.items or [], caller, request.app.state.service)
    await _check_room(store, caller, new=1)
    conversation = new_conversation(
        new_id("conv"), caller.account, redact_metadata(body.metadata, caller.policies)
    )
    await store.create(conversation)
    await store.append(conversation.id, items)
    return success(conversation_json(conversation))


@router.get("/{conversation_id}")
async def conversation(request: Request, conversation_id: str) -> Response:
    """Return a conversation without its items. A conversation of another team is reported as not found."""
    return success(conversation_json(await _find(request, conversation_id)))


@router.post("/{conversation_id}")
async def update(request: Request, conversation_id: str) -> Response:
    """Replace the metadata of a conversation."""
    caller = caller_of(request)
    await CallersRuns(request.app.state.service, caller).own_conversation(conversation_id)
    body = read_body(NewMetadata, await body_in_turn(request), remedy)
    if body.metadata:
        CallersRuns(request.app.state.service, caller).check_keeps()
    await _store(request).set_metadata(conversation_id, redact_metadata(body.metadata, caller.policies))
    return success(conversation_json(await _find(request, conversation_id)))


@router.delete("/{conversation_id}")
async def delete(request: Request, conversation_id: str) -> Response:
    """Delete a conversation with its items. Its responses are not deleted."""
    await _find(request, conversation_id)
    await _store(request).delete(conversation_id)
    return success({"id": conversation_id, "object": "conversation.deleted", "deleted": True})


@router.post("/{conversation_id}/items")
async def add_items(request: Request, conversation_id: str) -> Response:
    """Add up to 20 items to the end of a conversation."""
    caller, store = caller_of(request), _store(request)
    runs = CallersRuns(request.app.state.service, caller)
    current = await runs.own_conversation(conversation_id)
    runs.check_keeps()
    body = read_body(NewItems, await body_in_turn(request), remedy)
    items = await new_items(body.items, caller, request.app.state.service)
    check_room(current, "items")
    await _check_room(store, caller)
    await store.append(conversation_id, items)
    return success(page_json(items, has_more=False))


@router.get("/{conversation_id}/items")
async def items(
    request: Request,
    conversation_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """List the items of a conversation, newest first unless `order` is `asc`."""
    await _find(request, conversation_id)
    try:
        listed = await _store(request).items(conversation_id, limit + 1, after, newest_first=order == "desc")
    except KeyError:
        message = f"after: item {quote(after or '')} is not in this conversation."
        raise BadTask(message, param="after") from None
    async with turn(READS):
        return success(page_json(listed[:limit], has_more=len(listed) > limit))


@router.get("/{conversation_id}/items/{item_id}")
async def item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Return one item of a conversation."""
    await _find(request, conversation_id)
    stored = await _find_item(request, conversation_id, item_id)
    async with turn(READS):
        return success(stored)


@router.delete("/{conversation_id}/items/{item_id}")
async def delete_item(request: Request, conversation_id: str, item_id: str) -> Response:
    """Delete an item. The response is the conversation."""
    current = await _find(request, conversation_id)
    await _find_item(request, conversation_id, item_id)
    await _store(request).remove_item(conversation_id, item_id)
    return success(conversation_json(current))


def conversation_json(conversation: Conversation) -> Json:
    return {
        "id": conversation.id,
        "object": "conversation",
        "created_at": conversation.made_us // SECOND_US,
        "metadata": dict(conversation.metadata),
    }


def page_json(items: list[Json], *, has_more: bool) -> Json:
    ends = {"first_id": items[0]["id"], "last_id": items[-1]["id"]} if items else {"first_id": "", "last_id": ""}  # fmt: skip
    return {"object": "list", "data": items, "has_more": has_more} | ends


async def _find(request: Request, id: str) -> Conversation:
    """Return a conversation. Raise UnknownName if the caller has no such conversation."""
    return await CallersRuns(request.app.state.service, caller_of(request)).conversation(id)


async def _find_item(request: Request, id: str, item_id: str) -> Json:
    stored = await _store(request).item(id, item_id)
    if stored is None:
        raise UnknownName(f"item_id: item {quote(item_id)} is not in this conversation.", param="item_id")
    return stored


async def _check_room(store: ConversationStore, caller: Caller, new: int = 0) -> None:
    """Check that the caller's team may store more. Raise TooLarge at its limit."""
    n, n_bytes = await store.usage(caller.account)
    if n + new > MOST_OF_TEAM or n_bytes > MOST_BYTES_OF_TEAM:
        raise TooLarge(
            f"conversation: a team may have at most {MOST_OF_TEAM} conversations, with at most "
            f"{MOST_BYTES_OF_TEAM} bytes in total. Delete some conversations.",
            param="conversation",
        )


def _store(request: Request) -> ConversationStore:
    service: Service = request.app.state.service
    return service.conversations


def new_id(prefix: str) -> str:
    return f"{prefix}_{uuid.uuid4().hex}"


async def new_items(items: Sequence[Json], caller: Caller, service: Service) -> list[Json]:
    """Return `items` as they will be stored. Redaction runs in slices, so that other keys get turns. The
    BadTask names an invalid one's place.
    """
    redact, max_bytes = redactor_of(caller.policies), service.settings().limits.max_body_bytes
    repack = repacker(redact, max_bytes, BodyBound(max_bytes))
    redacted_items, _ = await in_turns(json_in_steps(list(items), redact, repack), caller.account)
    part_count = PartCount(max_bytes)

    def read_items() -> list[Json]:
        return [_new_item(item, f"items[{n}]", part_count) for n, item in enumerate(redacted_items)]

    if not any(item.get("type") in PACKED for item in redacted_items):
        return read_items()
    async with service.sessions.admission.loads.turn(caller.account):
        return await asyncio.to_thread(read_items)


def redact_metadata(metadata: Mapping[str, str] | None, policies: Policies) -> dict[str, str]:
    """Return a conversation's metadata, which may be any text, redacted for storage."""
    return dict(map_texts(metadata or {}, redactor_of(policies)))


def _new_item(item: Json, at: str, part_count: PartCount) -> Json:
    if item.get("type") == "item_reference":
        message = f"{at}.type: an item reference cannot be stored. Send the item itself."
        raise BadTask(message, param=f"{at}.type")
    transcript = Transcript(part_count=part_count)
    transcript.add_item(item, at, lambda _item, _at: ())
    kind = str(item.get("type") or "message")
    custom = {str(item["call_id"])} if kind == "custom_tool_call_output" else set[str]()
    read = [each for message in transcript.messages for each in items_of(message, 0, "", 0, custom)]
    if not read or kind in PREFIXES:  # it becomes no message, or several: store it as sent
        return item | {"id": new_id(PREFIXES.get(kind, "item"))}
    role = {"role": item["role"]} if kind == "message" else {}
    return read[0] | role | {"id": new_id(read[0]["id"].partition("_")[0])}


class ConversationTurns:
    """Adds the newest response of a run to the conversation of the run. Implements `TurnKeeper`."""

    def __init__(self) -> None:
        self._newest = deque[str](maxlen=MOST_KNOWN)

    async def __call__(self, service: Service, records: RunRecords) -> None:
        """Add the response, unless it was added before or belongs to no conversation."""
        record = records.record
        echo: dict[str, Any] = record.task.echo.get("response", {})
        conversation = echo.get("conversation")
        if conversation is None or record.status not in ENDED_WELL or not record.task.permit.stores:
            return
        turn = response_id(record.id, part_of(record))
        if turn in self._newest:  # called before the answer is sent, and again when the run is closed
            return
        stored_run = service.sessions.find_kept(record.id) or kept_part(records)
        ids = await service.store.call_ids()

        def call_id(number: int) -> str:
            return ids.sign(CallName(record.id, number))

        response = show_again(stored_run, call_id)
        # `dumps` replaces lone surrogates in a model's text
        items = loads(dumps([*input_items(stored_run, call_id), *response["output"]]))
        await service.conversations.append(conversation["id"], items, turn=turn)
        self._newest.append(turn)
