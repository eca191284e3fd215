"""Limits on HTTP responses of providers: number of headers, decompressed size, size of error bodies.

They are needed because the HTTP libraries read the whole body of an error, however long it is. If a body
breaks in aiohttp's C parser, they wait until the timeout. `serving.egress.client` limits connections and
redirects, and `event_stream.py` limits the size of an event.
"""

import asyncio
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping
from contextlib import aclosing
from math import inf
from typing import Any

import aiohttp
import httpx2

MAX_HEADERS = 256
"""Maximum number of headers of a response. google-genai takes 24 s to copy ten thousand headers."""
MAX_ERROR_BYTES = 64 * 2**10
"""Maximum number of bytes that are read from the body of an error. The rest is dropped."""
UNPACKED_BYTES = 64 * 2**10
"""Number of bytes that are decompressed at a time, because half a megabyte of gzip can expand to 500 MB."""
PIECE_BYTES = 4096
"""Bytes of an event stream that are read before other tasks run: up to 450 short events."""
UNPACKED_HERE = ("gzip", "x-gzip", "deflate")
AS_IT_IS = {"accept-encoding": "identity"}
"""Request header that turns off compression, because a stream of small pieces gains nothing from it."""


READ_HERE = ("identity", "", *UNPACKED_HERE)


class BodyRefused(httpx2.RemoteProtocolError):
    """The rest of a response body is not read. The message is a sentence that gives the reason."""


async def bound_response(response: httpx2.Response) -> None:
    """Response hook that limits the headers, decompresses the body piece by piece, and cuts off an error's.
    An answer with an unsupported encoding raises BodyRefused.
    """
    if len(response.headers.raw) > MAX_HEADERS:
        await response.aclose()
        raise httpx2.RemoteProtocolError(
            f"The response has {len(response.headers.raw)} headers, but at most {MAX_HEADERS} are allowed."
        )
    encoding = _encoding(response.headers)
    is_read = encoding in READ_HERE
    if response.is_success and not is_read:
        await response.aclose()
        raise BodyRefused(
            f"The server sent an answer with the content encoding {encoding!r}, which the request did not accept."
        )
    if isinstance(response.stream, httpx2.AsyncByteStream):
        most: float = inf if response.is_success else MAX_ERROR_BYTES if is_read else 0
        response.stream = BoundedBody(response.stream, most, is_packed=encoding in UNPACKED_HERE)
        response.headers.pop("content-encoding", None)  # otherwise the client decompresses it again


class BoundedBody(httpx2.AsyncByteStream):
    """Response body that ends after `most` bytes. It is decompressed if it `is_packed`."""

    def __init__(self, body: httpx2.AsyncByteStream, most: float = inf, *, is_packed: bool = False) -> None:
        self._body, self._most, self._is_packed = body, most, is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        room = self._most
        async for piece in _unpack_pieces(self._body) if self._is_packed else self._body:
            yield piece if len(piece) <= room else piece[: int(room)]
            room -= len(piece)
            if room <= 0:
                return

    async def aclose(self) -> None:
        await self._body.aclose()


def _encoding(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _parts(unpack: Any, chunk: bytes) -> Iterator[bytes]:
    """Yield the decompressed parts of a piece of a body."""
    try:
        while part := unpack.decompress(chunk, UNPACKED_BYTES):
            yield part
            chunk = unpack.unconsumed_tail
    except zlib.error as exc:
        raise httpx2.DecodingError(str(exc)) from exc


async def _unpack_pieces(body: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # detects gzip or zlib by the first bytes
    async for chunk in body:
        for part in _parts(unpack, chunk):
            yield part
            await asyncio.sleep(0)  # a decompression bomb slows down only its own call
        if unpack.eof:
            return


async def in_small_pieces(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """Yield `body` in pieces that take a few milliseconds to parse, and let other tasks run in between.

    Otherwise a server that sends without a pause would block the event loop.
    """
    n_bytes = 0
    async for piece in body:
        for begin in range(0, len(piece), PIECE_BYTES):
            part = piece[begin : begin + PIECE_BYTES]
            yield part
            n_bytes += len(part)
            if n_bytes >= PIECE_BYTES:
                n_bytes = 0
                await asyncio.sleep(0)


def check_answer(response: aiohttp.ClientResponse) -> None:
    """Check a response of aiohttp, as `bound_response` does for a response of httpx2."""
    if len(response.raw_headers) > MAX_HEADERS:
        raise httpx2.RemoteProtocolError(
            f"The response has {len(response.raw_headers)} headers, but at most {MAX_HEADERS} are allowed."
        )
    encoding = _encoding(response.headers)
    if 200 <= response.status < 300 and encoding not in READ_HERE:
        raise BodyRefused(
            f"The server sent an answer with the content encoding {encoding!r}, which the request did not accept."
        )


async def pieces_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """Yield the decompressed body as it arrives, in small pieces, and let other tasks run in between."""
    content, n_bytes = response.content, 0
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if _encoding(response.headers) in UNPACKED_HERE else None
    while arrived := await content.readany():
        for part in (arrived,) if unpack is None else _parts(unpack, arrived):
            for begin in range(0, len(part), PIECE_BYTES):
                piece = part[begin : begin + PIECE_BYTES]
                yield piece
                n_bytes += len(piece)
                if n_bytes >= PIECE_BYTES:
                    n_bytes = 0
                    await asyncio.sleep(0)
        if unpack is not None and unpack.eof:
            return


async def read_error(response: aiohttp.ClientResponse) -> bytes:
    """Return the first `MAX_ERROR_BYTES` of an error's body, or nothing if its encoding is not supported."""
    body = bytearray()
    if _encoding(response.headers) in READ_HERE:
        async with aclosing(pieces_of(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= MAX_ERROR_BYTES:
                    break
    return bytes(body[:MAX_ERROR_BYTES])


async def read_whole(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Return the body of an answer without a stream. Raise BodyRefused beyond `most_bytes`."""
    body = bytearray()
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > most_bytes:
                raise BodyRefused(f"The server sent an answer of more than {most_bytes} bytes.")
    return bytes(body)


def end_with_connection(response: aiohttp.ClientResponse) -> None:
    """Make the body of a response end with an error when its connection ends.

    If the framing of a body is broken, aiohttp's C parser (3.14.5) closes the connection without notifying
    the reader. The reader would then wait forever, because aiohttp's read timeout does not apply either.
    """
    if response.connection is None:
        return
    protocol, content = response.connection.protocol, response.content

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

    closed.remove_done_callback(_retrieve)  # an earlier request on this connection may have added it
    closed.add_done_callback(_retrieve)
    closed.add_done_callback(end)
    content.on_eof(forget)  # the connection outlives the body


def _retrieve(closed: asyncio.Future[None]) -> None:
    # asyncio logs errors that are not retrieved; the body raises this one
    if not closed.cancelled():
        closed.exception()
