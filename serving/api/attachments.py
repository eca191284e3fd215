"""Files in requests: which are accepted, and how stored files are loaded.

PDFs and UTF-8 texts are accepted, whatever their declared type. Nothing is downloaded from URLs: a client
could otherwise make the server fetch addresses of its internal network.
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
from serving.batches.model import StoredFile
from serving.batches.store import BatchStore
from serving.dispatch.slots import FairQueue
from serving.sessions.service import Service

PDF_MARK, MARK_WITHIN = b"%PDF-", 1024
"""A PDF has its marker within this many bytes (ISO 32000, Annex H of 1.7). A text may contain it, too."""
NAME_CHARS = 200
MOST_KEPT = 16
"""Maximum number of stored files that one request may name."""
NO_ADDRESS = "files are not downloaded from URLs. Send the file itself, or upload it with POST /v1/files and send its id"


def to_file(name: str | None, data: str, media_type: str = "") -> File:
    """Return the file in a `data:` URL or base64. Raise ValueError if it is not accepted."""
    return file_of(name, _content(data), media_type)


def file_of(name: str | None, content: bytes, media_type: str = "") -> File:
    """Return a file with this content: a PDF by its first bytes, or text. Raise ValueError for others."""
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
            "the file must be a PDF or UTF-8 text. Send images as image parts, and other content as text"
        )
    return File(one_line(name) or "document.txt", text=text)


def _pdf(name: str | None, content: bytes) -> File:
    encoded = base64.b64encode(content).decode("ascii")
    return File(one_line(name) or "document.pdf", f"data:application/pdf;base64,{encoded}")


def file_by_id(id: str, name: str | None = None) -> File:
    """Return a reference to a stored file. Its content is loaded later."""
    return File(one_line(name), id=id)


async def attach(request: ApiRequest, caller: Caller, store: BatchStore, service: Service) -> ApiRequest:
    """Return `request` with the content of each stored file that it names. Nothing is loaded beyond the
    limits of a body and of memory. Raise BadTask for files that are missing, hidden, or neither PDF nor text.
    """
    mentions, settings = _list_named_files(request), service.settings()
    ids = {part.id: request.place(index, number) for index, number, part in mentions}
    if len(ids) > MOST_KEPT:
        raise BadTask(
            f"A request may name at most {MOST_KEPT} files by id. Send fewer files.", param="file_id"
        )
    files = {id: await _find(id, place, caller, store) for id, place in ids.items()}
    n_bytes = sum(files[part.id].n_bytes for _, _, part in mentions)  # a file counts once per mention
    max_bytes = settings.limits.max_body_bytes
    if n_bytes > max_bytes:
        raise TooLarge(
            f"The files of a request may have at most {max_bytes} bytes together (limits.max_body_bytes). Send fewer or smaller files.",
            param="file_id",
        )
    turns = service.sessions.admission.loads
    held_bytes = len(request.choices) * base64_bytes(n_bytes)
    with service.sessions.admission.memory.hold(caller.account, held_bytes, request.priority):
        contents = {id: await _read(file, ids[id], store, turns, caller) for id, file in files.items()}
    return dataclasses.replace(
        request, conversation=tuple(_fill_message(message, contents) for message in request.conversation)
    )


async def _find(id: str, place: str, caller: Caller, store: BatchStore) -> StoredFile:
    file = await store.file(id)
    if file is None or not caller.reads(file.account):
        raise _not_kept(id, place)
    return file


async def _read(file: StoredFile, place: str, store: BatchStore, turns: FairQueue, caller: Caller) -> File:
    async with turns.turn(caller.account):
        content = await store.content(file.id)
        if content is None:
            raise _not_kept(file.id, place)
        try:
            return await asyncio.to_thread(file_of, file.name, content)
        except ValueError as exc:
            raise BadTask(f"{place}: {exc}.", param=place) from exc


def base64_bytes(n_bytes: int) -> int:
    return -(-n_bytes // 3) * 4


def _not_kept(id: str, place: str) -> BadTask:
    return BadTask(f"{place}: file {quote(id)} not found. GET /v1/files lists your files.", param=place)


def _list_named_files(request: ApiRequest) -> list[tuple[int, int, File]]:
    return [
        (index, number, each)
        for index, message in enumerate(request.conversation)
        for number, part in enumerate(message.parts)
        for each in Message(message.role, (part,)).all_parts
        if isinstance(each, File) and each.id
    ]


def _fill_message(message: Message, contents: dict[str, File]) -> Message:
    return replace(message, parts=tuple(_fill(part, contents) for part in message.parts))


def _fill(part: Part, contents: dict[str, File]) -> Part:
    match part:
        case File(id=id) if id:
            return replace(contents[id], name=part.name or contents[id].name)
        case ToolResult():
            filled = (_fill(each, contents) for each in part.parts)
            return replace(part, parts=tuple(each for each in filled if not isinstance(each, ToolResult)))
        case _:
            return part


def _content(data: str) -> bytes:
    if data.startswith(("http://", "https://")):
        raise ValueError(NO_ADDRESS)
    is_address = data[: len("data:")].lower() == "data:"
    header, comma, payload = data.partition(",")
    if not is_address:
        payload = data
    elif not comma:
        raise ValueError("the file must be a URL data:<media type>;base64,<content>, or base64")
    elif not header.lower().endswith(";base64"):
        return unquote_to_bytes(payload)
    try:
        return base64.b64decode(payload, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError("the content of the file must be valid base64") from exc


def one_line(name: str | None) -> str:
    """Return a name on one line, without unprintable characters."""
    readable = "".join(each if each.isprintable() else " " for each in name or "")
    return " ".join(readable.split())[:NAME_CHARS].strip()
