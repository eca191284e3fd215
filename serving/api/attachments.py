"""Files in requests: what is taken, and the content of those that are kept here.

A PDF or text in UTF-8 is taken, whatever it says of itself. Nothing is fetched from an address: who fetches what
strangers name can be led into its own network. Knows no dialect and no model.
"""

import asyncio
import base64
import binascii
import dataclasses
from urllib.parse import unquote_to_bytes

from msgspec.structs import replace

from conductor.errors import BadTask, TooLarge, quote
from conductor.model.messages import File, Message, Part, ToolResult
from serving.accounts.caller import Caller
from serving.api.request import ApiRequest
from serving.batches.model import File as KeptFile
from serving.batches.store import BatchStore
from serving.sessions.service import Service

PDF_MARK, MARK_WITHIN = b"%PDF-", 1024
"""A PDF begins so, within that many bytes (ISO 32000, Annex H of 1.7). A text may speak of it, too."""
NAME_CHARS = 200
MOST_KEPT = 16
"""Files that one request may name by their ids."""
NO_ADDRESS = "files are not fetched from addresses. Send the file itself, or upload it with POST /v1/files and send its id"


def to_file(name: str | None, given: str, media_type: str = "") -> File:
    """The file that `given` holds: a `data:` address, or base64.

    Raises:
        ValueError: it holds none that is taken.
    """
    return file_of(name, _content(given), media_type)


def file_of(name: str | None, content: bytes, media_type: str = "") -> File:
    """A file of that content; a PDF is told by its first bytes.

    Raises:
        ValueError: it is neither a PDF nor text.
    """
    if not content:
        raise ValueError("the file is empty")
    if content[:MARK_WITHIN].lstrip().startswith(PDF_MARK):
        return _pdf(name, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        if PDF_MARK in content[:MARK_WITHIN]:
            return _pdf(name, content)
        text = "\0"
    if "\0" in text or media_type == "application/pdf":
        raise ValueError(
            "a file is a PDF, or text in UTF-8. Send pictures as pictures, and anything else as text"
        )
    return File(one_line(name) or "document.txt", text=text)


def _pdf(name: str | None, content: bytes) -> File:
    encoded = base64.b64encode(content).decode("ascii")
    return File(one_line(name) or "document.pdf", f"data:application/pdf;base64,{encoded}")


def kept_file(id: str, name: str | None = None) -> File:
    """A file that is kept here, before its content is known."""
    return File(one_line(name), id=id)


async def attach(request: ApiRequest, caller: Caller, store: BatchStore, service: Service) -> ApiRequest:
    """`request` with the content of each file that it names by its id; itself where it names none. Nothing is read of
    what the run would not be let in with.

    Raises:
        BadTask: there are too many; one is not kept here, or not for `caller` to see, or can be read by no model.
        TooLarge: together they have more than a body may.
        Overloaded: there is no room for them at the moment.
        StoreUnavailable: the store is away.
    """
    named, settings = _list_named_files(request), service.pool.settings
    ids = {part.id: request.place(index, number) for index, number, part in named}
    if not ids:
        return request
    if len(ids) > MOST_KEPT:
        raise BadTask(f"A request names {MOST_KEPT} files by their ids at most.", param="file_id")
    files = {id: await _find(id, place, caller, store) for id, place in ids.items()}
    n_bytes = sum(files[part.id].n_bytes for _, _, part in named)  # each is sent on as often as it is named
    max_bytes = settings.limits.max_body_bytes
    if n_bytes > max_bytes:
        raise TooLarge(
            f"The files of a request may have {max_bytes} bytes together (limits.max_body_bytes). Send fewer.",
            param="file_id",
        )
    held_bytes = len(request.choices) * base64_bytes(n_bytes)
    with service.sessions.admission.memory.hold(caller.account, held_bytes, request.priority):
        found = {id: await _read(file, ids[id], store) for id, file in files.items()}
    return dataclasses.replace(
        request, conversation=tuple(_fill_message(message, found) for message in request.conversation)
    )


async def _find(id: str, place: str, caller: Caller, store: BatchStore) -> KeptFile:
    file = await store.file(id)
    if file is None or not caller.reads(file.account):
        raise _not_kept(id, place)
    return file


async def _read(file: KeptFile, place: str, store: BatchStore) -> File:
    content = await store.content(file.id)
    if content is None:
        raise _not_kept(file.id, place)
    try:
        return await asyncio.to_thread(file_of, file.name, content)
    except ValueError as exc:
        raise BadTask(f"{place}: {exc}.", param=place) from exc


def base64_bytes(n_bytes: int) -> int:
    """How long so many bytes are in base64."""
    return -(-n_bytes // 3) * 4


def _not_kept(id: str, place: str) -> BadTask:
    return BadTask(f"{place}: no file {quote(id)} is kept here; GET /v1/files lists yours.", param=place)


def _list_named_files(request: ApiRequest) -> list[tuple[int, int, File]]:
    return [
        (index, number, each)
        for index, message in enumerate(request.conversation)
        for number, part in enumerate(message.parts)
        for each in Message(message.role, (part,)).all_parts
        if isinstance(each, File) and each.id
    ]


def _fill_message(message: Message, found: dict[str, File]) -> Message:
    return replace(message, parts=tuple(_fill(part, found) for part in message.parts))


def _fill(part: Part, found: dict[str, File]) -> Part:
    match part:
        case File(id=id) if id:
            return replace(found[id], name=part.name or found[id].name)
        case ToolResult():
            filled = (_fill(each, found) for each in part.parts)
            return replace(part, parts=tuple(each for each in filled if not isinstance(each, ToolResult)))
        case _:
            return part


def _content(given: str) -> bytes:
    if given.startswith(("http://", "https://")):
        raise ValueError(NO_ADDRESS)
    is_address = given[: len("data:")].lower() == "data:"
    header, comma, written = given.partition(",")
    if not is_address:
        written = given
    elif not comma:
        raise ValueError("a file is given as data:<media type>;base64,<content>, or as base64")
    elif not header.lower().endswith(";base64"):
        return unquote_to_bytes(written)
    try:
        return base64.b64decode(written, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError("the file's content is not base64") from exc


def one_line(name: str | None) -> str:
    """A name in one line, without what cannot be seen."""
    readable = "".join(each if each.isprintable() else " " for each in name or "")
    return " ".join(readable.split())[:NAME_CHARS].strip()
