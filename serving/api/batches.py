"""`/v1/batches`: files of requests that run with low priority, within 24 hours."""

import uuid
from dataclasses import replace
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field
from starlette.responses import Response

from conductor.errors import BadTask, Overloaded, UnknownName, quote
from serving.accounts.caller import Caller
from serving.api.authentication import caller_of
from serving.api.dialect import Dialects
from serving.api.dialects.read_body import body_in_turn, read_body
from serving.api.files import (
    BATCH,
    SECOND_US,
    ExpiresAfter,
    batches_of,
    check_keeps,
    find_file,
    find_last,
    no_file,
    page,
)
from serving.api.record_json import Json
from serving.api.request import NameText
from serving.api.respond import success
from serving.batches.kept_text import redactor_of
from serving.batches.model import Batch
from serving.batches.runner import Batches
from serving.redaction.texts import map_texts

router = APIRouter()
WINDOW_US = 86_400_000_000
AGAIN_S = 30.0
"""Seconds after which a team with too many open batches may retry."""
STAMPS = {
    "in_progress": "in_progress_at",
    "finalizing": "finalizing_at",
    "completed": "completed_at",
    "failed": "failed_at",
    "expired": "expired_at",
    "cancelling": "cancelling_at",
    "cancelled": "cancelled_at",
}
MetaName = Annotated[NameText, Field(max_length=64)]
MetaText = Annotated[NameText, Field(max_length=512)]


class NewBatch(BaseModel):
    """Body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]+$")]
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetaName, MetaText], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


@router.post("/v1/batches")
async def create(request: Request) -> Response:
    """Create a batch. It runs each line of a file as a separate request, within 24 hours."""
    caller = caller_of(request)
    check_keeps(caller)
    body = read_body(NewBatch, await body_in_turn(request))
    dialects: Dialects = request.app.state.dialects
    if body.endpoint not in dialects.by_path:
        served = ", ".join(dialects.by_path)
        raise BadTask(f"endpoint: {quote(body.endpoint)} cannot be used in batches. Use one of {served}.", param="endpoint")  # fmt: skip
    file = await find_file(request, body.input_file_id, caller, "input_file_id")
    if not caller.reads(file.account):
        raise no_file(file.id, "input_file_id")
    if file.purpose != BATCH:
        raise BadTask(
            f"input_file_id: the purpose of the file must be {BATCH!r}. Upload it with this purpose.",
            param="input_file_id",
        )
    batches = batches_of(request)
    at_us = batches.now_us()
    batch = Batch(
        id=f"batch_{uuid.uuid4().hex}",
        account=caller.account,
        owner=batches.store.owner,
        status="validating",
        input_file_id=file.id,
        endpoint=body.endpoint,
        metadata=dict(map_texts(body.metadata or {}, redactor_of(caller.policies))),
        made_us=at_us,
        expires_us=at_us + WINDOW_US,
        drop_us=max(batches.drop_us(caller.policies), at_us + WINDOW_US),
        output_s=body.output_expires_after.seconds if body.output_expires_after else None,
    )
    async with batches.adding:
        await _check_open(batches, batch)
        await batches.store.add(batch)
    batches.begin(batch.id)
    return success(batch_json(batch, (0, 0)))


async def _check_open(batches: Batches, batch: Batch) -> None:
    """Check that the team may have one more open batch, or raise Overloaded."""
    most = batches.settings.max_open_per_team
    if await batches.store.count_open(batch.account) >= most:
        raise Overloaded(
            f"This team has reached its limit of {most} open batches. Retry when one has ended, or cancel one; "
            "GET /v1/batches lists them.",
            retry_after_s=AGAIN_S,
        )


@router.get("/v1/batches")
async def list_batches(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[
        str | None, Query(description="Id of a batch. Only batches created before it are listed.")
    ] = None,
) -> Response:
    """List the batches of the caller's team, newest first."""
    caller, store = caller_of(request), batches_of(request).store
    last = await find_last(after, store.get, caller) if after is not None else None
    batches = await store.batches(caller, limit + 1, last)
    return await page(batches, lambda each: batch_json(each, (each.completed, each.failed)), limit)


@router.get("/v1/batches/{id}")
async def batch(request: Request, id: str) -> Response:
    """Return one batch with its progress. A batch of another team is reported as not found."""
    caller = caller_of(request)
    return success(await _show(request, await _find(request, id, caller)))


@router.post("/v1/batches/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    """Cancel a batch. Any replica accepts the request, even if another one runs the batch. No further lines start.

    Lines that are running finish, and the results so far are written to files. A batch that has ended stays
    unchanged. A key that may not read the batch and did not create it receives only the `status`.
    """
    caller = caller_of(request)
    await _find(request, id, caller)
    batches = batches_of(request)

    def change(batch: Batch) -> Batch:
        if batch.status not in ("validating", "in_progress"):
            return batch
        return replace(batch, status="cancelling", stamps=batch.stamps | {"cancelling": batches.now_us()})

    new_batch = await batches.store.change(id, change)
    if not caller.reads(new_batch.account):
        return success({"id": id, "object": "batch", "status": new_batch.status})
    return success(await _show(request, new_batch))


async def _show(request: Request, batch: Batch) -> Json:
    counts = batch.completed, batch.failed
    return batch_json(batch, await batches_of(request).store.counts(batch.id) if batch.is_open else counts)


async def _find(request: Request, id: str, caller: Caller) -> Batch:
    stored = await batches_of(request).store.get(id)
    if stored is None or not caller.sees(stored.account):
        raise UnknownName(
            f"Batch {quote(id)} not found. GET /v1/batches lists your batches.", param="batch_id"
        )
    return stored


def batch_json(batch: Batch, counts: tuple[int, int]) -> Json:
    completed, failed = counts
    stamps: dict[str, Any] = {
        field: batch.stamps[status] // SECOND_US if status in batch.stamps else None
        for status, field in STAMPS.items()
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "errors": {"object": "list", "data": batch.errors} if batch.errors else None,
        "input_file_id": batch.input_file_id,
        "completion_window": "24h",
        "status": batch.status,
        "output_file_id": batch.output_file_id,
        "error_file_id": batch.error_file_id,
        "created_at": batch.made_us // SECOND_US,
        "expires_at": batch.expires_us // SECOND_US,
        **stamps,
        "request_counts": {"total": batch.total, "completed": completed, "failed": failed},
        "metadata": batch.metadata or None,
    }
