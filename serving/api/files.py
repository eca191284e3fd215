"""`/v1/files`: inputs and outputs of batches, and files that requests name. The content is not interpreted
here.
"""

import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from typing import Annotated, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, Field, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import Response, StreamingResponse

from conductor.errors import BadTask, NotAllowed, TooLarge, UnknownName, quote
from conductor.model.characters import check_name_text
from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.api.authentication import caller_of
from serving.api.dialects.responses.compaction import repacker
from serving.api.record_json import Json
from serving.api.respond import success, success_list
from serving.api.route_access import READ_BYTES
from serving.batches.kept_text import LineLimits, kept_content, kept_in_steps, redactor_of
from serving.batches.model import Batch, StoredFile
from serving.batches.runner import Batches
from serving.batches.store import BatchStore
from serving.edge.checks import BodyBound
from serving.errors import explain_fault
from serving.redaction.personal import MOST_CHECKED_IN_FILE
from serving.redaction.slices import in_turns, turn
from serving.sessions.service import Service

router = APIRouter()
BATCH, USER_DATA = "batch", "user_data"
"""Purposes: lines of a batch, and a PDF or text that requests name by its id."""
SECOND_US = 1_000_000
MOST_FILES = 100_000
"""Maximum number of stored files of one team."""
PARSED_BYTES = 16_384
"""Bytes of a form to parse at once. The parser takes up to a microsecond per byte."""
Item = TypeVar("Item", StoredFile, Batch)


class ExpiresAfter(BaseModel):
    """Rule for when a file expires, as in OpenAI's API."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3_600, le=2_592_000)]


@router.post("/v1/files")
async def upload(request: Request) -> Response:
    """Upload a file as a multipart form with `purpose` and `file`.

    With the purpose `batch`, the file holds the requests of a batch. With `user_data`, it is a PDF or text
    that requests can name by its id.
    """
    caller = caller_of(request)
    check_keeps(caller)
    batches = batches_of(request)
    purpose, name, content, expiry_s = await _form(request, caller.account)
    if len(content) > batches.settings.max_file_bytes:
        raise TooLarge(f"file: the file must have at most {batches.settings.max_file_bytes} bytes (batches.max_file_bytes). Split it.", param="file")  # fmt: skip
    service: Service = request.app.state.service
    limits = service.settings().limits
    redact = redactor_of(caller.policies, MOST_CHECKED_IN_FILE)
    if purpose == BATCH:
        of_lines = LineLimits(batches.settings.max_lines, limits.max_body_bytes, limits.max_text_bytes)
        whole = BodyBound(batches.settings.max_file_bytes, "batches.max_file_bytes")
        repack = repacker(redact, limits.max_body_bytes, whole)
        keep = kept_in_steps(content, redact, of_lines, repack)
    else:
        keep = kept_content(content, redact, limits.max_text_bytes)
    redacted_content, name = await in_turns(keep, caller.account), redact(name)
    id, drop_us = f"file-{uuid.uuid4().hex}", batches.drop_us(caller.policies, expiry_s)
    file = StoredFile(id, caller.account, purpose, name, len(redacted_content), batches.now_us(), drop_us)
    async with batches.adding:
        await _check_room(batches, file)
        await batches.store.add_file(file, redacted_content)
    return success(file_json(file))


async def _check_room(batches: Batches, file: StoredFile) -> None:
    """Check that the team has room for a file, or raise TooLarge."""
    most = batches.settings.max_bytes_per_team
    n_files, n_bytes = await batches.store.file_usage(file.account)
    if n_files >= MOST_FILES:
        raise TooLarge(f"file: a team may have at most {MOST_FILES} files. Delete some files.", param="file")
    if n_bytes + file.n_bytes > most:
        raise TooLarge(
            f"file: the files of a team may use at most {most} bytes (batches.max_bytes_per_team). Delete some files.",
            param="file",
        )


@router.get("/v1/files")
async def files(
    request: Request,
    purpose: Annotated[str | None, Query(pattern=r"^[^\x00]+$")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: Annotated[
        str | None, Query(description="Id of a file. Only files after it in the list are returned.")
    ] = None,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """List the files of the caller's team."""
    caller, store = caller_of(request), batches_of(request).store
    last = await find_last(after, store.file, caller) if after is not None else None
    if last is not None and purpose not in (None, last.purpose):
        raise not_listed(last.id)
    listed = await store.files(caller, limit + 1, last, purpose, newest_first=order == "desc")
    return await page(listed, file_json, limit)


@router.get("/v1/files/{id}")
async def file(request: Request, id: str) -> Response:
    """Return one file without its content. A file of another team is reported as not found."""
    caller = caller_of(request)
    return success(file_json(await find_file(request, id, caller)))


@router.get("/v1/files/{id}/content")
async def content(request: Request, id: str) -> Response:
    """Return the content of a file."""
    caller = caller_of(request)
    n_bytes = (await find_file(request, id, caller)).n_bytes
    store = batches_of(request).store
    first = await store.piece(id, 0, READ_BYTES)
    if first is None:
        raise no_file(id)
    headers = {"content-length": str(n_bytes)}
    return StreamingResponse(_pieces(store, id, first, n_bytes), 200, headers, "application/octet-stream")


async def _pieces(store: BatchStore, id: str, piece: bytes, n_bytes: int) -> AsyncGenerator[bytes]:
    """Yield `piece` and the rest of the file, one piece in memory. It ends early if the file is deleted."""
    n_sent = 0
    while piece:
        yield piece
        n_sent += len(piece)
        if n_sent >= n_bytes:
            return
        piece = await store.piece(id, n_sent, READ_BYTES) or b""


@router.delete("/v1/files/{id}")
async def delete(request: Request, id: str) -> Response:
    """Delete a file. A batch that is processing it fails."""
    caller = caller_of(request)
    await find_file(request, id, caller)
    await batches_of(request).store.delete_file(id)
    return success({"id": id, "object": "file", "deleted": True})


async def find_file(request: Request, id: str, caller: Caller, param: str = "file_id") -> StoredFile:
    """Return a file. Raise UnknownName if `caller` may not see it."""
    stored = await batches_of(request).store.file(id)
    if stored is None or not caller.sees(stored.account):
        raise no_file(id, param)
    return stored


def batches_of(request: Request) -> Batches:
    return request.app.state.batches


def check_keeps(caller: Caller) -> None:
    """Check that the policy allows storing text, which files and batches need, or raise NotAllowed."""
    if owner := caller.policies.refusing_owner(lambda policy: policy.store_content):
        raise NotAllowed(
            f"file: the policy of this {owner} does not allow storing text, which files and batches require. "
            f"An administrator can change it with `podium {owner}s policy`.",
            param="file",
        )


async def find_last(after: str, find: Callable[[str], Awaitable[Item | None]], caller: Caller) -> Item:
    """Return the last item of the previous page. Raise UnknownName if the caller may not see it."""
    item = await find(after)
    if item is None or not caller.sees(item.account):
        raise not_listed(after)
    return item


def not_listed(after: str) -> UnknownName:
    return UnknownName(f"after: {quote(after)} is not in this list.", param="after")


async def page(items: Sequence[Item], show: Callable[[Item], Json], limit: int) -> Response:
    """Return a page of a list. Its first `limit` items are shown, and any other means that there are more."""
    shown = items[:limit]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return await success_list(
        shown, show, {"first_id": first, "last_id": last, "has_more": len(items) > limit}
    )


def file_json(file: StoredFile) -> Json:
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.n_bytes,
        "created_at": file.made_us // SECOND_US,
        "expires_at": file.drop_us // SECOND_US,
        "filename": file.name,
        "purpose": file.purpose,
        "status": "processed",
    }


async def _in_pieces(body: bytes, payer: Account) -> AsyncGenerator[bytes]:
    """Yield `body` in pieces, because the parser processes all that it gets at once."""
    for begin in range(0, len(body), PARSED_BYTES):
        async with turn(payer):
            yield body[begin : begin + PARSED_BYTES]


async def _form(request: Request, payer: Account) -> tuple[str, str, bytes, int | None]:
    """Return a form's purpose, and its file's name, content and seconds to store, or raise BadTask."""
    try:
        async with aclosing(_in_pieces(await request.body(), payer)) as pieces:
            form = await MultiPartParser(request.headers, pieces, max_files=1, max_fields=10).parse()
    except (MultiPartException, FormParserError, KeyError) as exc:
        message = "file: the body must be a multipart form with `purpose` and one `file`."
        raise BadTask(message, param="file") from exc
    purpose, form_file = form.get("purpose"), form.get("file")
    if not isinstance(purpose, str) or purpose not in (BATCH, USER_DATA):
        raise BadTask(f"purpose must be {BATCH!r} or {USER_DATA!r}.", param="purpose")
    if not isinstance(form_file, UploadFile):
        raise BadTask("file is missing from the form.", param="file")
    try:
        name = check_name_text((form_file.filename or "file")[:255])
    except ValueError as exc:
        raise BadTask(f"The name of the file {exc}.", param="file") from exc
    return purpose, name, await form_file.read(), _expiry_s(form)


def _expiry_s(form: FormData) -> int | None:
    """Return the form's seconds to store the file, or None. Raise BadTask if they are invalid."""
    fields = {
        key: form[f"expires_after[{key}]"] for key in ("anchor", "seconds") if f"expires_after[{key}]" in form
    }
    if not fields:
        return None
    try:
        return ExpiresAfter.model_validate(fields).seconds
    except ValidationError as exc:
        fault = exc.errors()[0]
        place = ".".join(("expires_after", *map(str, fault["loc"])))
        raise BadTask(f"{explain_fault(place, fault)}.", param="expires_after") from exc


def no_file(id: str, param: str = "file_id") -> UnknownName:
    """Return the error for a file that does not exist, or that the caller may not see."""
    return UnknownName(f"{param}: file {quote(id)} not found. GET /v1/files lists your files.", param=param)
