"""Repair of Anthropic's event stream before its SDK reads it, and the usage that it reports.

The SDK ignores events without a name, and complete messages. But some proxies omit the names of events. Some
servers answer with one complete message, which is replaced by the events of the same content.
"""

from collections.abc import Iterator
from typing import cast

import msgspec

from conductor.model.usage import Usage
from serving.workers.chat_chunks import fields
from serving.workers.event_stream import Event, json_of
from serving.workers.stream_errors import error_in_event
from serving.workers.usage import UsageCheck

Fields = dict[str, object]


PING = b"ping"


def events_in(event: Event) -> Iterator[Event]:
    """Yield the events that the SDK should read in place of `event`, which is usually `event` itself.

    A ping yields no events.
    """
    if event.name == PING:
        return
    if event.name not in (b"", b"error", b"message"):
        yield event
        return
    try:
        value: object = json_of(event.data)
    except msgspec.DecodeError:
        yield Event(b"unreadable", event.data)  # the SDK raises the error
        return
    body = fields(value)
    if error := error_in_event(body, event.name):
        yield _event({"type": "error", "error": error})
        return
    kind = str(body.get("type") or "")
    if kind == "message":
        yield from map(_event, _events_of(body))
    elif kind and kind.encode("utf-8", "replace") != PING:
        yield Event(kind.encode("utf-8", "replace"), event.data)


def _events_of(message: Fields) -> Iterator[Fields]:
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    content = message.get("content")
    text = {"type": "text", "text": content}
    blocks = cast(list[object], content) if isinstance(content, list) else [text]
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
    reason, stop = message.get("stop_reason") or "end_turn", message.get("stop_sequence")
    end = {"stop_reason": reason, "stop_sequence": stop}
    yield {"type": "message_delta", "delta": end, "usage": message.get("usage")}
    yield {"type": "message_stop"}


def _event(fields: Fields) -> Event:
    return Event(str(fields["type"]).encode(), msgspec.json.encode(fields))


def usage_of(
    reported: object, before: Usage | None, check: UsageCheck, *, is_begun: bool = False
) -> Usage | None:
    """Return the usage that Anthropic reports, or None if it has no output tokens or is implausible.

    Args:
        reported: usage object of the SDK. The SDK does not check its values.
        before: usage from earlier events, or None. Fields that are missing in `reported` keep their earlier
            value.
        check: usage check of the call.
        is_begun: whether this is the event at the start of the stream. Its number of output tokens is
            ignored, because it says nothing about the answer.
    """

    def count(name: str, of: object = reported) -> int | None:
        return check.count(name, getattr(of, name, None))

    uncached, read, cache_write = (
        count(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    cache_write_1h = count("ephemeral_1h_input_tokens", getattr(reported, "cache_creation", None))
    thoughts = count("thinking_tokens", getattr(reported, "output_tokens_details", None))
    output = count("output_tokens")
    if output is None:
        return None
    earlier = before or Usage()
    cached = earlier.cached_input_tokens if read is None else read
    cache_write = earlier.cache_write_tokens if cache_write is None else cache_write
    return check.usage(
        earlier.input_tokens if uncached is None else uncached + cached + cache_write,
        0 if is_begun else output,
        cached,
        earlier.reasoning_tokens if thoughts is None else thoughts,
        cache_write,
        earlier.cache_write_1h_tokens if cache_write_1h is None else cache_write_1h,
    )
