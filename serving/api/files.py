"""`/v1/files`: requests of batches and what became of them, and files that requests name. Knows nothing of what is in
one.
"""

import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
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
from serving.accounts.caller import Caller
from serving.api.access import READ_BYTES
from serving.api.authentication import caller_of
from serving.api.record_json import Json
from serving.api.respond import success, success_list
from serving.batches.kept_text import LineLimits, kept_content, kept_in_steps, redactor_of
from serving.batches.model import Batch, File
from serving.batches.runner import Batches
from serving.batches.store import BatchStore
from serving.redaction.personal import MOST_CHECKED_IN_FILE
from serving.redaction.slices import in_turns, turn
from serving.sessions.service import Service

router = APIRouter()
BATCH, USER_DATA = "batch", "user_data"
"""Lines of a batch; what requests name by its id, a PDF or text."""
SECOND_US = 1_000_000
PARSED_BYTES = 16_384
"""Of a form at once: its parser takes up to a microsecond for each byte."""
Kept = TypeVar("Kept", File, Batch)


class ExpiresAfter(BaseModel):
    """OpenAI's: how long a file is kept, at most."""

    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=3_600, le=2_592_000)]


@router.post("/v1/files")
async def upload(request: Request) -> Response:
    """Keep a file of requests for a batch, or one that requests name: a form with `purpose` and `file`."""
    caller = caller_of(request)
    check_keeps(caller)
    batches = batches_of(request)
    purpose, name, content, asked_s = await _form(request, caller.account.key_id)
    if len(content) > batches.settings.max_file_bytes:
        raise TooLarge(f"file: it is longer than {batches.settings.max_file_bytes} bytes (batches.max_file_bytes). Send several.", param="file")  # fmt: skip
    service: Service = request.app.state.service
    limits = service.pool.settings.limits
    redact = redactor_of(caller.policies, MOST_CHECKED_IN_FILE)
    if purpose == BATCH:
        of_lines = LineLimits(batches.settings.max_lines, limits.max_body_bytes, limits.max_text_bytes)
        keep = kept_in_steps(content, redact, of_lines)
    else:
        keep = kept_content(content, redact, limits.max_text_bytes)
    kept, name = await in_turns(keep, caller.account.key_id), redact(name)
    id, drop_us = f"file-{uuid.uuid4().hex}", batches.drop_us(caller.policies, asked_s)
    file = File(id, caller.account, purpose, name, len(kept), batches.now_us(), drop_us)
    async with batches.adding:
        await _check_room(batches, file)
        await batches.store.add_file(file, kept)
    return success(file_json(file))


async def _check_room(batches: Batches, file: File) -> None:
    """Whether a file fits beside the others of its team.

    Raises:
        TooLarge: it does not.
    """
    most = batches.settings.max_bytes_per_team
    if await batches.store.used_bytes(file.account) + file.n_bytes > most:
        raise TooLarge(
            f"file: the files of this team may take {most} bytes (batches.max_bytes_per_team). Delete some.",
            param="file",
        )


@router.get("/v1/files")
async def files(
    request: Request,
    purpose: Annotated[str | None, Query(pattern=r"^[^\x00]+$")] = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    after: Annotated[str | None, Query(description="The id of a file: those after it in the list.")] = None,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """The files that the caller's team has here."""
    caller = caller_of(request)
    found = await batches_of(request).store.files(caller, purpose)
    if order == "asc":
        found.reverse()
    return await page(found, file_json, limit, after)


@router.get("/v1/files/{id}")
async def file(request: Request, id: str) -> Response:
    """One file, without its content. Another team's is as one that is not there."""
    caller = caller_of(request)
    return success(file_json(await find_file(request, id, caller)))


@router.get("/v1/files/{id}/content")
async def content(request: Request, id: str) -> Response:
    """What a file holds."""
    caller = caller_of(request)
    n_bytes = (await find_file(request, id, caller)).n_bytes
    store = batches_of(request).store
    first = await store.piece(id, 0, READ_BYTES)
    if first is None:
        raise _no_file(id)
    headers = {"content-length": str(n_bytes)}
    return StreamingResponse(_pieces(store, id, first, n_bytes), 200, headers, "application/octet-stream")


async def _pieces(store: BatchStore, id: str, piece: bytes, n_bytes: int) -> AsyncGenerator[bytes]:
    """`piece` and what follows it in the file: who reads slowly holds no more than one in memory. Where the file goes
    meanwhile, the answer breaks off.
    """
    n_sent = 0
    while piece:
        yield piece
        n_sent += len(piece)
        if n_sent >= n_bytes:
            return
        piece = await store.piece(id, n_sent, READ_BYTES) or b""


@router.delete("/v1/files/{id}")
async def delete(request: Request, id: str) -> Response:
    """Forget a file. A batch that has begun on it fails."""
    caller = caller_of(request)
    await find_file(request, id, caller)
    await batches_of(request).store.delete_file(id)
    return success({"id": id, "object": "file", "deleted": True})


async def find_file(request: Request, id: str, caller: Caller, param: str = "file_id") -> File:
    """The file of that id.

    Raises:
        UnknownName: there is none, or it is not for `caller` to see.
    """
    found = await batches_of(request).store.file(id)
    if found is None or not caller.sees(found.account):
        raise _no_file(id, param)
    return found


def batches_of(request: Request) -> Batches:
    """This router's."""
    return request.app.state.batches


def check_keeps(caller: Caller) -> None:
    """Files are texts, and kept.

    Raises:
        NotAllowed: by a policy no text of the caller's may be.
    """
    if whose := caller.policies.whose(lambda policy: policy.store_content):
        raise NotAllowed(
            f"file: by the policy of this {whose}, no text is kept, which files and batches need. "
            f"An administrator may change it: `podium {whose}s policy`.",
            param="file",
        )


async def page(
    items: Sequence[Kept], show: Callable[[Kept], Json], limit: int, after: str | None
) -> Response:
    """Some of a list.

    Raises:
        UnknownName: `after` is none of it.
    """
    ids = [item.id for item in items]
    if after is not None and after not in ids:
        raise UnknownName(f"after: there is no {quote(after)} in this list.", param="after")
    begin = ids.index(after) + 1 if after is not None else 0
    shown = items[begin : begin + limit]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    ends = {"first_id": first, "last_id": last, "has_more": begin + limit < len(items)}
    return await success_list(shown, show, ends)


def file_json(file: File) -> Json:
    """A file, as OpenAI writes one."""
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


async def _in_pieces(body: bytes, payer: str) -> AsyncGenerator[bytes]:
    """`body`, for a parser that does as much at once as it is given."""
    for begin in range(0, len(body), PARSED_BYTES):
        async with turn(payer):
            yield body[begin : begin + PARSED_BYTES]


async def _form(request: Request, payer: str) -> tuple[str, str, bytes, int | None]:
    """The purpose, the name and the content of the file in a form, and for how many seconds it is to be kept.

    Raises:
        BadTask: it is no such form.
    """
    try:
        async with aclosing(_in_pieces(await request.body(), payer)) as pieces:
            form = await MultiPartParser(request.headers, pieces, max_files=1, max_fields=10).parse()
    except (MultiPartException, FormParserError, KeyError) as exc:
        raise BadTask("file: the body is no form with one file and a purpose.", param="file") from exc
    purpose, sent = form.get("purpose"), form.get("file")
    if not isinstance(purpose, str) or purpose not in (BATCH, USER_DATA):
        raise BadTask(f"purpose: only {BATCH!r} and {USER_DATA!r} are served.", param="purpose")
    if not isinstance(sent, UploadFile):
        raise BadTask("file: the form has no file.", param="file")
    try:
        name = check_name_text((sent.filename or "file")[:255])
    except ValueError as exc:
        raise BadTask(f"file: in its name {exc}.", param="file") from exc
    return purpose, name, await sent.read(), _asked_s(form)


def _asked_s(form: FormData) -> int | None:
    """For how long a form asks that its file be kept; None: it does not say.

    Raises:
        BadTask: it asks for something else.
    """
    asked = {
        key: form[f"expires_after[{key}]"] for key in ("anchor", "seconds") if f"expires_after[{key}]" in form
    }
    if not asked:
        return None
    try:
        return ExpiresAfter.model_validate(asked).seconds
    except ValidationError as exc:
        raise BadTask(f"expires_after: {exc.errors()[0]['msg']}.", param="expires_after") from exc


def _no_file(id: str, param: str = "file_id") -> UnknownName:
    return UnknownName(f"{param}: no file {quote(id)} is kept here; GET /v1/files lists yours.", param=param)
