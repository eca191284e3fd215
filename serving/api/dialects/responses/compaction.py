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
from serving.edge.checks import PACKED_MARK, BodyBound, too_large
from serving.redaction.secrets import Redactor
from serving.redaction.slices import Steps, finish
from serving.redaction.texts import Repack, json_in_steps, steps_of

PACKED_SHARE = 0.9
"""Share of `limits.max_body_bytes` that an item may have, packed and unpacked. The rest is for the next turn."""
PARTS: Mapping[str, tuple[type, ...]] = {
    "system": (Text,),
    "user": (Text, Image, File),
    "assistant": (Text, ToolCall),
    "tool": (ToolResult,),
}
"""Parts that a message may have, by its role."""
STEP_BYTES = 100_000
"""Number of bytes that are packed or unpacked in one step. That takes about a millisecond."""
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
    content = finish(_pack_in_steps(data))
    if max(len(data), len(content)) > PACKED_SHARE * max_body_bytes:
        raise too_large(max_body_bytes)
    return content


def unpack(content: str, at: str, count: PartCount) -> tuple[Message, ...]:
    """Return the messages that `pack` packed. `at` is the item's place. Raise BadTask if the content is not
    from here.

    The bytes and parts inside are added to `count`, because a few compressed kB may have hundreds of thousands.
    """
    try:
        data = finish(_unpack_in_steps(content, count.left_bytes))
        count.add_unpacked(data)
        messages = codec.decode(tuple[Message, ...], data)
    except (ValueError, RecursionError) as exc:
        raise BadTask(
            f"{at}.encrypted_content was not created by this server's POST /v1/responses/compact. Send the item exactly as you received it.",
            param=f"{at}.encrypted_content",
        ) from exc
    for part in _attachments(messages):
        if isinstance(part, Image):
            read_part(ImageUrl, {"url": part.url, "detail": part.detail}, f"{at}.encrypted_content")
        else:
            _check_file(part, f"{at}.encrypted_content")
    return tuple(_check_message(message, f"{at}.encrypted_content") for message in messages)


def repacker(redact: Redactor, max_item_bytes: int, whole: BodyBound) -> Repack:
    """Return a function that redacts the messages inside compaction items. Use it for one request or file only.

    The function raises TooLarge if the JSON inside an item is longer than `max_item_bytes`, which is
    `limits.max_body_bytes`, or that of all items is longer than `whole`.
    """
    left_bytes = whole.max_bytes

    def repack(content: str) -> Steps[str | None]:
        nonlocal left_bytes
        if not content.startswith(PACKED_MARK):
            return None
        try:
            data = yield from _unpack_in_steps(content, max_item_bytes)
            PartCount(max_item_bytes).add_unpacked(data)
            left_bytes -= len(data)
            if left_bytes < 0:
                raise too_large(*whole)
            value, has_changed = yield from json_in_steps(json.loads(data), redact)
            if not has_changed:
                return content
            new_text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        except (ValueError, RecursionError):  # no request can use it, so it is only text
            return (yield from steps_of(redact, content))
        return (yield from _pack_in_steps(new_text.encode("utf-8", "surrogatepass")))

    return repack


def _pack_in_steps(data: bytes) -> Steps[str]:
    compressor, pieces = zlib.compressobj(LEVEL), list[bytes]()
    for at in range(0, len(data), STEP_BYTES):
        pieces.append(compressor.compress(data[at : at + STEP_BYTES]))
        yield
    return PACKED_MARK + base64.urlsafe_b64encode(b"".join([*pieces, compressor.flush()])).decode()


def _unpack_in_steps(content: str, most_bytes: int) -> Steps[bytes]:
    """Return the JSON in an item, or more than `most_bytes` bytes of it if it is longer. Raise ValueError if
    this server did not pack it.
    """
    if not content.startswith(PACKED_MARK):
        raise ValueError("another server's")
    data = base64.b64decode(content.removeprefix(PACKED_MARK), b"-_", validate=True)
    unpacker, pieces, n_bytes = zlib.decompressobj(), list[bytes](), 0
    for at in range(0, len(data), STEP_BYTES):
        rest = data[at : at + STEP_BYTES]
        while rest and n_bytes <= most_bytes:
            try:
                pieces.append(unpacker.decompress(rest, STEP_BYTES))
            except zlib.error as exc:
                raise ValueError("it is damaged") from exc
            n_bytes += len(pieces[-1])
            rest = unpacker.unconsumed_tail
            yield
    if n_bytes <= most_bytes and (not unpacker.eof or unpacker.unused_data):
        raise ValueError("it is not complete, or has more after its end")
    return b"".join(pieces)


def _check_message(message: Message, at: str) -> Message:
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
