"""A conversation as one opaque item, and back.

`POST /v1/responses/compact` calls no model: the item holds the messages themselves, packed, so that nothing of
them is lost; whoever sends it back sends one short item. It is a client's by then: what it holds is checked as if
it had been sent item by item.
"""

import base64
import json
import zlib
from collections.abc import Iterator

from msgspec.structs import replace

from conductor.errors import BadTask
from conductor.model.messages import File, Image, Message
from conductor.run import codec
from serving.api.attachments import one_line, to_file
from serving.api.dialects.chat.schema import ImageUrl
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.schema import read_part

MARK = "podium1."
MOST_BYTES = 8 * 1024 * 1024
"""Of what is unpacked of one item."""
MOST_ITEMS = 4
"""In a request."""


def pack(messages: tuple[Message, ...]) -> str:
    """`messages` as the content of a compaction item."""
    data = json.dumps(codec.dump(messages), separators=(",", ":")).encode("utf-8", "surrogatepass")
    return MARK + base64.urlsafe_b64encode(zlib.compress(data, 9)).decode()


def unpack(content: str, at: str, count: PartCount | None = None) -> tuple[Message, ...]:
    """What `pack` packed; `at` is its place in the request. Its parts are bounded with those of the request's other ones:
    a few kB may hold hundreds of thousands.

    Raises:
        BadTask: it is none of ours, or has too many parts.
    """
    try:
        if not content.startswith(MARK):
            raise ValueError("another server's")
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.urlsafe_b64decode(content.removeprefix(MARK)), MOST_BYTES)
        if unpacker.unconsumed_tail or not unpacker.eof:
            raise ValueError("it is too long")
        (count or PartCount()).add(data)
        messages: tuple[Message, ...] = codec.load(tuple[Message, ...], json.loads(data))
    except (ValueError, zlib.error, RecursionError) as exc:
        raise BadTask(
            f"{at}.encrypted_content: it was not made by this server's /v1/responses/compact.",
            param=f"{at}.encrypted_content",
        ) from exc
    for part in _shown(messages):
        if isinstance(part, Image):
            read_part(ImageUrl, {"url": part.url, "detail": part.detail}, f"{at}.encrypted_content")
        else:
            _check_file(part, f"{at}.encrypted_content")
    return tuple(replace(message, native=None) for message in messages)


def _check_file(file: File, at: str) -> None:
    """Whether `file` is what `to_file` or `kept_file` gives: no address, no name of several lines."""
    holds = (bool(file.url), file.text is not None, bool(file.id))
    is_made_here = sum(holds) == 1 and file.name == one_line(file.name)
    try:
        if not is_made_here or (file.url and to_file(file.name, file.url).url != file.url):
            raise ValueError("it holds a file that was not made here")
    except ValueError as exc:
        raise BadTask(f"{at}: {exc}.", param=at) from exc


def _shown(messages: tuple[Message, ...]) -> Iterator[Image | File]:
    for message in messages:
        yield from (part for part in message.all_parts if isinstance(part, Image | File))
