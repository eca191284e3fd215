"""A conversation packed into one opaque item, and unpacked again.

`POST /v1/responses/compact` calls no model. The item contains the messages themselves, compressed, so that
nothing is lost, and the client sends one short item instead of its history. The client could change it, so
unpacking checks the content like items that were sent one by one.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from conductor.errors import BadTask
from conductor.model.messages import File, Image, Message, Text, ToolCall, ToolResult, thoughts_of
from conductor.run import codec
from serving.api.attachments import one_line, to_file
from serving.api.dialects.chat.schema import ImageUrl
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.schema import read_part

MARK = "podium1."
MOST_BYTES = 8 * 1024 * 1024
"""Maximum number of unpacked bytes of one item."""
MOST_ITEMS = 4
"""Maximum number of compaction items in a request."""
PARTS: Mapping[str, tuple[type, ...]] = {
    "system": (Text,),
    "user": (Text, Image, File),
    "assistant": (Text, ToolCall),
    "tool": (ToolResult,),
}
"""Parts that a message may have, by its role."""
LEVEL = 1
"""Level of the compression. Higher levels take up to ten times as long for a little less."""


def pack(messages: tuple[Message, ...]) -> str:
    """Return the messages as one text. A long conversation takes a second, so call this in a thread."""
    data = json.dumps(codec.dump(messages), separators=(",", ":")).encode("utf-8", "surrogatepass")
    return MARK + base64.urlsafe_b64encode(zlib.compress(data, LEVEL)).decode()


def unpack(content: str, at: str, count: PartCount | None = None) -> tuple[Message, ...]:
    """Return the messages that `pack` packed. `at` is the item's place. Raise BadTask if the content is not
    from here.

    The parts inside are added to `count`, because a few compressed kB may have hundreds of thousands.
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
            f"{at}.encrypted_content was not created by this server's POST /v1/responses/compact. Send the item exactly as you received it.",
            param=f"{at}.encrypted_content",
        ) from exc
    for part in _attachments(messages):
        if isinstance(part, Image):
            read_part(ImageUrl, {"url": part.url, "detail": part.detail}, f"{at}.encrypted_content")
        else:
            _check_file(part, f"{at}.encrypted_content")
    return tuple(_checked(message, f"{at}.encrypted_content") for message in messages)


def _checked(message: Message, at: str) -> Message:
    """Return a message as items can make it: with the parts of its role and, from an assistant, known thoughts.
    Raise BadTask for other parts.
    """
    if not all(isinstance(part, PARTS[message.role]) for part in message.parts):
        raise BadTask(f"{at}: a message with the role {message.role} contains other parts.", param=at)
    thoughts = thoughts_of(message.thoughts) if message.role == "assistant" else {}
    return replace(message, native=None, thoughts=thoughts)


def _check_file(file: File, at: str) -> None:
    """Check that `file` is what `to_file` or `file_by_id` returns: without a URL, and with a name on one line."""
    holds = (bool(file.url), file.text is not None, bool(file.id))
    is_made_here = sum(holds) == 1 and file.name == one_line(file.name)
    try:
        if not is_made_here or (file.url and to_file(file.name, file.url).url != file.url):
            raise ValueError("the item contains a file that this server did not create")
    except ValueError as exc:
        raise BadTask(f"{at}: {exc}.", param=at) from exc


def _attachments(messages: tuple[Message, ...]) -> Iterator[Image | File]:
    for message in messages:
        yield from (part for part in message.all_parts if isinstance(part, Image | File))
