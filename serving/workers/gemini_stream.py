"""Gemini's event stream on its way to Google's SDK, which refuses a whole chunk, the answer's last words
included, where a token count in it is of the wrong type, and takes comments for garbage.

A count that is no integer is passed on as -1, which `usage.py` rejects; comments are left out, and events passed on whole
(`event_stream.py`). Nothing else is touched.
"""

from http import HTTPStatus
from typing import cast

import httpx2
import msgspec

from serving.workers.event_stream import WholeEvents
from serving.workers.http_guard import MAX_ERROR_BYTES, BoundedBody
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


def _checked(data: bytes) -> bytes:
    """The data of an event, its token counts replaced where the SDK would refuse them."""
    if b'"usageMetadata"' not in data:
        return data
    try:
        chunk: object = msgspec.json.decode(data)
    except msgspec.DecodeError:
        return data  # the SDK says what is wrong with it
    if not isinstance(chunk, dict):
        return data
    fields = cast(dict[str, object], chunk)
    reported = fields.get("usageMetadata")
    usage = cast(dict[str, object], reported) if isinstance(reported, dict) else {}
    counts = {name: usage[name] for name in COUNTS if usage.get(name) is not None}
    if isinstance(reported, dict) and all(type(count) is int for count in counts.values()):
        return data
    whole = {name: _readable(count) for name, count in counts.items()}
    return msgspec.json.encode(fields | {"usageMetadata": whole or None})


def _readable(count: object) -> int:
    number = integer(count)
    return NO_COUNT if number is None else min(number, MOST)
