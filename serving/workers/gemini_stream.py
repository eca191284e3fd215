"""Gemini's event stream on its way to Google's SDK, which refuses a whole chunk, the answer's last words
included, where a token count in it is of the wrong type, and takes comments for garbage.

A count that is no integer is passed on as -1, which `usage.py` rejects; comments are left out. Nothing else
is touched.
"""

from collections.abc import AsyncIterator
from typing import cast

import httpx2
import msgspec

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


async def check_usage_counts(response: httpx2.Response) -> None:
    """A response hook: put `CheckedEvents` around a stream of events that is not compressed."""
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    if (
        is_stream
        and "content-encoding" not in response.headers
        and isinstance(response.stream, httpx2.AsyncByteStream)
    ):
        response.stream = CheckedEvents(response.stream)


class CheckedEvents(httpx2.AsyncByteStream):
    """A body of server-sent events, line by line."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        rest = b""
        async for piece in self._body:
            *lines, rest = (rest + piece).split(b"\n")
            whole = b"".join(_check_line(line) + b"\n" for line in lines if not line.startswith(b":"))
            if whole:
                yield whole
        if rest:
            yield rest

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


def _check_line(line: bytes) -> bytes:
    """The line, its token counts replaced where the SDK would refuse them."""
    if not line.startswith(b"data:") or b'"usageMetadata"' not in line:
        return line
    try:
        chunk: object = msgspec.json.decode(line.removeprefix(b"data:"))
    except msgspec.DecodeError:
        return line  # the SDK says what is wrong with it
    if not isinstance(chunk, dict):
        return line
    fields = cast(dict[str, object], chunk)
    reported = fields.get("usageMetadata")
    usage = cast(dict[str, object], reported) if isinstance(reported, dict) else {}
    counts = {name: usage[name] for name in COUNTS if usage.get(name) is not None}
    if isinstance(reported, dict) and all(type(count) is int for count in counts.values()):
        return line
    whole = {name: _readable(count) for name, count in counts.items()}
    return b"data: " + msgspec.json.encode(fields | {"usageMetadata": whole or None})


def _readable(count: object) -> int:
    number = integer(count)
    return NO_COUNT if number is None else min(number, MOST)
