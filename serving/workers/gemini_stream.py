"""Gemini's event stream on its way to Google's SDK, which refuses a whole chunk, the answer's last words
included, where a token count in it is of the wrong type, and takes comments for garbage.

A count that is no integer is passed on as -1, which `usage.py` rejects; comments are left out, and events passed on whole
(`event_stream.py`). Nothing else is touched.
"""

from http import HTTPStatus
from typing import cast

import httpx2
import msgspec

from serving.workers.chat_chunks import fields
from serving.workers.event_stream import Event, WholeEvents
from serving.workers.http_errors import error_text
from serving.workers.http_guard import MAX_ERROR_BYTES, BoundedBody
from serving.workers.stream_errors import error_code, error_in_event, status_in_stream
from serving.workers.usage import integer

COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
)
NO_COUNT = -1
MOST = 2**62
"""What msgspec writes; far beyond what is believed."""
MOST_VALUES = 20_000
"""Of JSON in a chunk; the arguments of a call come whole."""


async def check_usage_counts(response: httpx2.Response) -> None:
    """A response hook: pass on whole events, their counts checked."""
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    if response.status_code == HTTPStatus.OK:
        response.stream = WholeEvents(response.stream, MOST_VALUES, _checked, takes_bare_lines=True)
    else:  # the SDK takes every other status for an error's
        response.stream = BoundedBody(response.stream, MAX_ERROR_BYTES)


def _checked(event: Event) -> Event:
    """Return an event that the SDK can read: errors in the one form it knows, token counts as integers."""
    if b'"error' in event.data:
        body = fields(_decoded(event.data))
        if "candidates" not in body and (error := error_in_event(body, event.name)):
            code = status_in_stream(error, error_text(error))
            is_googles = isinstance(error.get("status"), str)
            words = error["status"] if is_googles else error_code(error)
            told = {**error, "status": words, "code": code, "message": error_text(error)}
            return Event(b"", msgspec.json.encode({"error": told}))
    return Event(event.name, _with_counts(event.data))


def _decoded(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError:
        return None


def _with_counts(data: bytes) -> bytes:
    """Return the data of an event, its token counts replaced where the SDK would refuse them."""
    if b'"usageMetadata"' not in data:
        return data
    chunk = fields(_decoded(data))
    if not chunk:
        return data  # the SDK says what is wrong with it
    reported = chunk.get("usageMetadata")
    usage = cast(dict[str, object], reported) if isinstance(reported, dict) else {}
    counts = {name: usage[name] for name in COUNTS if usage.get(name) is not None}
    if isinstance(reported, dict) and all(type(count) is int for count in counts.values()):
        return data
    whole = {name: _readable(count) for name, count in counts.items()}
    return msgspec.json.encode(chunk | {"usageMetadata": whole or None})


def _readable(count: object) -> int:
    number = integer(count)
    return NO_COUNT if number is None else min(number, MOST)
