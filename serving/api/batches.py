"""`/v1/batches`: files of requests that are run without hurry."""

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
from serving.api.dialects.read_body import read_body
from serving.api.files import BATCH, SECOND_US, ExpiresAfter, batches_of, check_keeps, find_file, page
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
"""After so long a team that has too many open batches may ask again."""
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
    """The body of `POST /v1/batches`."""

    input_file_id: Annotated[str, Field(max_length=100, pattern=r"^[^\x00]+$")]
    endpoint: str
    completion_window: Literal["24h"]
    metadata: Annotated[dict[MetaName, MetaText], Field(max_length=16)] | None = None
    output_expires_after: ExpiresAfter | None = None


@router.post("/v1/batches")
async def create(request: Request) -> Response:
    """Run the lines of a file, each as a request of its own, within 24 hours."""
    caller = caller_of(request)
    check_keeps(caller)
    asked = read_body(NewBatch, await request.body())
    dialects: Dialects = request.app.state.dialects
    if asked.endpoint not in dialects.by_path:
        served = ", ".join(dialects.by_path)
        raise BadTask(f"endpoint: {quote(asked.endpoint)} takes no batch; there are {served}.", param="endpoint")  # fmt: skip
    file = await find_file(request, asked.input_file_id, caller, "input_file_id")
    if file.purpose != BATCH:
        raise BadTask(f"input_file_id: the purpose of this file is not {BATCH!r}.", param="input_file_id")
    batches = batches_of(request)
    at_us = batches.now_us()
    batch = Batch(
        id=f"batch_{uuid.uuid4().hex}",
        account=caller.account,
        owner=batches.store.owner,
        status="validating",
        input_file_id=file.id,
        endpoint=asked.endpoint,
        metadata=dict(map_texts(asked.metadata or {}, redactor_of(caller.policies))),
        made_us=at_us,
        expires_us=at_us + WINDOW_US,
        drop_us=max(batches.drop_us(caller.policies), at_us + WINDOW_US),
        output_s=asked.output_expires_after.seconds if asked.output_expires_after else None,
    )
    async with batches.adding:
        await _check_open(batches, batch)
        await batches.store.add(batch)
    batches.begin(batch.id)
    return success(batch_json(batch, (0, 0)))


async def _check_open(batches: Batches, batch: Batch) -> None:
    """Whether its team may have one more open batch.

    Raises:
        Overloaded: it has as many as it may.
    """
    most = batches.settings.max_open_per_team
    if await batches.store.count_open(batch.account) >= most:
        raise Overloaded(
            f"A team may have {most} open batches, and this one has. Send it again when one has ended, or cancel one; "
            "GET /v1/batches lists them.",
            retry_after_s=AGAIN_S,
        )


@router.get("/v1/batches")
async def list_batches(
    request: Request,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    after: Annotated[str | None, Query(description="The id of a batch: those before it in time.")] = None,
) -> Response:
    """The batches of the caller's team, the newest first."""
    caller = caller_of(request)
    found = await batches_of(request).store.batches(caller)
    return await page(found, lambda each: batch_json(each, (each.completed, each.failed)), limit, after)


@router.get("/v1/batches/{id}")
async def batch(request: Request, id: str) -> Response:
    """One batch, and how far it is. Another team's is as one that is not there."""
    caller = caller_of(request)
    return success(await _show(request, await _find(request, id, caller)))


@router.post("/v1/batches/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    """Begin no more lines, on whichever replica it is worked on. Those under way end, and what there is is
    written to files. A batch that has ended stays as it is. A key that may not read, and did not make the batch, gets only
    its `status`.
    """
    caller = caller_of(request)
    await _find(request, id, caller)
    batches = batches_of(request)

    def change(found: Batch) -> Batch:
        if found.status not in ("validating", "in_progress"):
            return found
        return replace(found, status="cancelling", stamps=found.stamps | {"cancelling": batches.now_us()})

    changed = await batches.store.change(id, change)
    if not caller.reads(changed.account):
        return success({"id": id, "object": "batch", "status": changed.status})
    return success(await _show(request, changed))


async def _show(request: Request, found: Batch) -> Json:
    counts = found.completed, found.failed
    return batch_json(found, await batches_of(request).store.counts(found.id) if found.is_open else counts)


async def _find(request: Request, id: str, caller: Caller) -> Batch:
    found = await batches_of(request).store.get(id)
    if found is None or not caller.sees(found.account):
        raise UnknownName(
            f"No batch {quote(id)} is kept here; GET /v1/batches lists yours.", param="batch_id"
        )
    return found


def batch_json(found: Batch, counts: tuple[int, int]) -> Json:
    """A batch, as OpenAI writes one."""
    completed, failed = counts
    stamps: dict[str, Any] = {
        field: found.stamps[status] // SECOND_US if status in found.stamps else None
        for status, field in STAMPS.items()
    }
    return {
        "id": found.id,
        "object": "batch",
        "endpoint": found.endpoint,
        "errors": {"object": "list", "data": found.errors} if found.errors else None,
        "input_file_id": found.input_file_id,
        "completion_window": "24h",
        "status": found.status,
        "output_file_id": found.output_file_id,
        "error_file_id": found.error_file_id,
        "created_at": found.made_us // SECOND_US,
        "expires_at": found.expires_us // SECOND_US,
        **stamps,
        "request_counts": {"total": found.total, "completed": completed, "failed": failed},
        "metadata": found.metadata or None,
    }
