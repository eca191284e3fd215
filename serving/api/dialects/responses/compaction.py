"""A conversation packed into one opaque item, and unpacked again.

`POST /v1/responses/compact` calls no model. The item contains the messages themselves, compressed, so that
nothing is lost, and the client sends one short item instead of its history. The client could change it, so
unpacking checks the content like items that were sent one by one.
"""

import base64
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
from serving.edge.checks import PACKED_MARK, too_large

PACKED_SHARE = 0.9
"""Share of `limits.max_body_bytes` that an item may have, packed and unpacked. The rest is for the next turn."""
PARTS: Mapping[str, tuple[type, ...]] = {
    "system": (Text,),
    "user": (Text, Image, File),
    "assistant": (Text, ToolCall),
    "tool": (ToolResult,),
}
"""Parts that a message may have, by its role."""
LEVEL = 1
"""Level of the compression. Higher levels take up to ten times as long for a little less."""


def pack(messages: tuple[Message, ...], max_body_bytes: int) -> str:
    """Return the messages as one text. A long conversation takes a second, so call this in a thread.

    Raises:
        TooLarge: no request could contain the item.
        BadTask: the item would have too many parts to be unpacked.
    """
    data = codec.encode(messages)
    PartCount().add(data)
    content = PACKED_MARK + base64.urlsafe_b64encode(zlib.compress(data, LEVEL)).decode()
    if max(len(data), len(content)) > PACKED_SHARE * max_body_bytes:
        raise too_large(max_body_bytes)
    return content


def unpack(content: str, at: str, count: PartCount) -> tuple[Message, ...]:
    """Return the messages that `pack` packed. `at` is the item's place. Raise BadTask if the content is not
    from here.

    The bytes and parts inside are added to `count`, because a few compressed kB may have hundreds of thousands.
    """
    try:
        data = _unpacked(content, count.left_bytes)
        count.add_unpacked(data)
        messages = codec.decode(tuple[Message, ...], data)
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


def _unpacked(content: str, most_bytes: int) -> bytes:
    """Return the JSON in an item, or at least `most_bytes` + 1 bytes of it if it is longer."""
    if not content.startswith(PACKED_MARK):
        raise ValueError("another server's")
    unpacker = zlib.decompressobj()
    packed = base64.b64decode(content.removeprefix(PACKED_MARK), b"-_", validate=True)
    data = unpacker.decompress(packed, most_bytes + 1)
    if len(data) <= most_bytes and (not unpacker.eof or unpacker.unused_data):
        raise ValueError("it is not complete, or has more after its end")
    return data


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
