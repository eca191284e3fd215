"""Routes for stored responses, and for counting and compacting a conversation. None starts a run."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from conductor.errors import BadTask, UnknownName, quote
from conductor.model.call import Sampling
from conductor.model.messages import Message
from conductor.run.record import RunRecords
from serving.api.authentication import caller_of, is_still_accepted
from serving.api.dialect import CallId
from serving.api.dialects.read_body import body_in_turn, read_body
from serving.api.dialects.responses.compaction import pack
from serving.api.dialects.responses.conversations import page_json
from serving.api.dialects.responses.earlier import (
    CallersRuns,
    conversation_of,
    find_response,
    input_items,
    request_of,
    show_again,
)
from serving.api.dialects.responses.schema import Referred, remedy
from serving.api.dialects.responses.segments import echo_of_newest, item_id, part_of
from serving.api.dialects.responses.tools import read_tools
from serving.api.request import ApiRequest, Podium
from serving.api.resolve import check_name
from serving.api.respond import success
from serving.api.run_response import RunResponse, Wire
from serving.redaction.slices import READS, turn
from serving.sessions.following import follow_segment, retell
from serving.sessions.service import Service

router = APIRouter(prefix="/v1/responses")
Json = dict[str, Any]


class CountRequest(Referred):
    """Body of `POST /v1/responses/input_tokens`."""

    model: str | None = None
    tools: list[Json] | None = None


class CompactRequest(Referred):
    """Body of `POST /v1/responses/compact`."""

    model: str


class ReplayResponse(RunResponse, Response):
    """Response that streams the run of an earlier request from its beginning. The stream ends early if the
    key is no longer accepted.

    Args:
        records: the run as it was when the replayed segment ended. A segment lasts until the run waits for
            tool results, or ends.
        segment: number of the replayed segment, from 0.
        is_same: whether to replay the stored events of a background run, which are the same for all readers.
        is_accepted: function that returns whether the key is still accepted.
        args, named: arguments of `RunResponse`. `request` is the earlier request, with the fields that its
            response repeats.
    """

    def __init__(
        self,
        *args: Any,
        records: RunRecords,
        segment: int,
        is_same: bool,
        is_accepted: Callable[[], Awaitable[bool]],
        **named: Any,
    ) -> None:
        RunResponse.__init__(self, *args, **named)
        Response.__init__(self)  # FastAPI returns only a `Response` as it is
        self._records, self._segment, self._is_same = records, segment, is_same
        self._is_accepted = is_accepted

    async def _answer(self, wire: Wire) -> None:
        store, id = self._service.store, self._records.record.id
        self._call_ids = await store.call_ids()
        if self._is_same:
            opened = retell(store, id, self._segment)
        else:
            await store.watch(id)
            opened = follow_segment(store, self._records, self._segment - 1)
        async with self._service.sessions.follow(id, self._caller.account, opened) as run:
            wire.run = run
            encoder = self._dialect.encoder(run, self._request, self._call_id(id))
            await wire.begin_stream()
            await wire.send(encoder.begin())
            await self._stream_rest(run, encoder, wire)

    async def _may_continue(self) -> bool:
        return await self._is_accepted()


@router.post("/input_tokens")
async def input_tokens(request: Request) -> Response:
    """Estimate the input tokens of a request, without calling a model.

    The exact number depends on the workers that the plan will choose.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    body = read_body(CountRequest, await body_in_turn(request), remedy)
    if body.model is not None:
        check_name(body.model, service.pool, caller.policies)
    messages = (await conversation_of(body, CallersRuns(service, caller))).messages
    tools, _ = read_tools(body.tools, None, parallel=True)
    whole = (Message.of("system", body.instructions or ""), *messages)
    counted = ApiRequest(body.model or "", whole, Sampling(), None, Podium(), False, False, tools)
    return success({"object": "response.input_tokens", "input_tokens": counted.input_token_estimate})


@router.post("/compact")
async def compact(request: Request) -> Response:
    """Pack the conversation into one item, which the client can send instead of its turns. No model is
    called, and nothing is lost.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    body = read_body(CompactRequest, await body_in_turn(request), remedy)
    check_name(body.model, service.pool, caller.policies)
    messages = (await conversation_of(body, CallersRuns(service, caller))).messages
    async with service.sessions.admission.loads.turn(caller.account):
        content = await asyncio.to_thread(pack, messages, service.settings().limits.max_body_bytes)
    id = f"resp_{uuid.uuid4().hex}00"
    item = {"id": item_id("cmp", id, 0), "type": "compaction", "encrypted_content": content}
    usage = {
        "input_tokens": 0,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 0,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 0,
    }
    created = int(time.time())
    return success(
        {"id": id, "object": "response.compaction", "created_at": created, "output": [item], "usage": usage}
    )


@router.get("/{response_id}")
async def response(
    request: Request,
    response_id: str,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0)] = None,
) -> Response:
    """Return a stored response, finished or in progress.

    With `stream`, return its events from the beginning, or those after `starting_after`. A response of
    another team is reported as not found.
    """
    records, call_id = await _find(request, response_id)
    if not stream:
        async with turn(READS):
            return success(show_again(records, call_id))
    is_same = bool(echo_of_newest(records.record)["response"]["background"])
    if starting_after is not None and not is_same:
        message = "starting_after is only supported for background responses. Remove it."
        raise BadTask(message, param="starting_after")
    earlier = request_of(records, -1 if starting_after is None else starting_after)
    return ReplayResponse(
        request.app.state.service,
        request.app.state.dialects.of(request.scope["path"]),
        earlier,
        {},
        caller_of(request),
        records=records,
        segment=part_of(records.record),
        is_same=is_same,
        is_accepted=lambda: is_still_accepted(request),
    )


@router.delete("/{response_id}")
async def delete(request: Request, response_id: str) -> Response:
    """Delete the texts of a response and of its run's record. Tokens, costs and times are kept for
    accounting.
    """
    service: Service = request.app.state.service
    records, _ = await _find(request, response_id)
    record = records.record
    if record.status in ("running", "detached", "waiting"):
        raise BadTask(
            f"Response {quote(response_id)} is in progress. Cancel it before you delete it.",
            param="response_id",
        )
    await service.store.remove_texts(record.id)
    service.earlier_turns.forget(record.id)
    return success({"id": response_id, "object": "response", "deleted": True})


@router.post("/{response_id}/cancel")
async def cancel(request: Request, response_id: str) -> Response:
    """Cancel a response that is in progress. Open calls are closed, and their tokens so far are billed.

    A response that has ended stays unchanged.
    """
    service: Service = request.app.state.service
    records, _ = await _find(request, response_id)
    await service.sessions.cancel(records.record.id)
    records, call_id = await _find(request, response_id, is_over=True)
    async with turn(READS):
        return success(show_again(records, call_id))


@router.get("/{response_id}/input_items")
async def items(
    request: Request,
    response_id: str,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
) -> Response:
    """List the input items of a response, newest first unless `order` is `asc`."""
    records, call_id = await _find(request, response_id)
    async with turn(READS):
        listed = input_items(records, call_id)
        if order == "desc":
            listed.reverse()
        if after is not None:
            place = next((n for n, item in enumerate(listed) if item["id"] == after), None)
            if place is None:
                raise BadTask(f"after: item {quote(after)} is not in this response.", param="after")
            listed = listed[place + 1 :]
        return success(page_json(listed[:limit], has_more=len(listed) > limit))


async def _find(request: Request, id: str, *, is_over: bool = False) -> tuple[RunRecords, CallId]:
    """Return the run of a response and its call ids, or raise UnknownName. With `is_over`, wait up to half a
    second for its end.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    earlier = CallersRuns(service, caller)
    records = await find_response(id, earlier, is_over=is_over)
    if records is None:
        raise UnknownName(f"Response {quote(id)} not found.", param="response_id")
    return records, await earlier.call_id(records.record.id)
