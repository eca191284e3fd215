"""What every HTTP client of an API worker keeps to when it is answered: no endless headers, no endless line,
no body that never ends. Where it connects, and that it follows no redirect, is `serving.egress.client`'s.

The libraries under the SDKs leave some of it open: a body that breaks under aiohttp's C parser is waited for
until the timeout.
"""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
import httpx2

MAX_HEADERS = 256
"""Of a response. Copying ten thousand takes google-genai 24 s."""
MAX_LINE_BYTES = 16 * 2**20
"""Of an event; a picture in base64 fits."""


async def bound_response(response: httpx2.Response) -> None:
    """A response hook: refuse too many headers, and end a body whose lines have no end.

    Raises:
        httpx2.RemoteProtocolError: there are too many.
    """
    if len(response.headers.raw) > MAX_HEADERS:
        await response.aclose()
        raise httpx2.RemoteProtocolError(f"{len(response.headers.raw)} headers")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        response.stream = BoundedLines(response.stream)


class BoundedLines(httpx2.AsyncByteStream):
    """A body, ended with an error where one of its lines is too long."""

    def __init__(self, body: httpx2.AsyncByteStream) -> None:
        self._body = body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        line_bytes = 0
        async for piece in self._body:
            newline = piece.rfind(b"\n")
            line_bytes = len(piece) - newline - 1 if newline >= 0 else line_bytes + len(piece)
            if line_bytes > MAX_LINE_BYTES:
                raise httpx2.RemoteProtocolError(f"a line of more than {MAX_LINE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


async def end_with_connection(response: httpx2.Response) -> None:
    """A response hook for aiohttp's transport: a body ends when its connection does.

    aiohttp's C parser (3.14.5) forgets the body that it reads when its framing breaks, closes the
    connection and wakes nobody, so the reader waits for bytes that cannot come, without even the read
    timeout.
    """
    body = getattr(getattr(response.stream, "_stream", None), "_aiohttp_response", None)
    if not isinstance(body, aiohttp.ClientResponse) or body.connection is None:
        return
    protocol, content = body.connection.protocol, body.content

    def end(_: object = None) -> None:
        if not content.is_eof() and content.exception() is None:
            content.set_exception(
                aiohttp.ClientPayloadError("The connection closed in the middle of the body.")
            )

    closed = None if protocol is None else protocol.closed
    if closed is None:
        end()
        return

    def forget() -> None:
        closed.remove_done_callback(end)

    closed.remove_done_callback(_retrieve)  # the connection has been used before
    closed.add_done_callback(_retrieve)
    closed.add_done_callback(end)
    content.on_eof(forget)  # the connection is kept, the body is not


def _retrieve(closed: asyncio.Future[None]) -> None:
    """asyncio logs an error that nobody retrieved; a reset is told by the body that it breaks."""
    if not closed.cancelled():
        closed.exception()
