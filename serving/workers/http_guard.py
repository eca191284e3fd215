"""What every HTTP client of an API worker keeps to when it is answered: no endless headers, no body that unpacks to more
than is read of it, no body that never ends. Where it connects, and that it follows no redirect, is
`serving.egress.client`'s; how long an event may be is `event_stream.py`'s.

The libraries under the SDKs leave some of it open: they read an error's body whole, however long it is, and a body
that breaks under aiohttp's C parser is waited for until the timeout.
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
"""Of a response. Copying ten thousand takes google-genai 24 s."""
MAX_ERROR_BYTES = 64 * 2**10
"""Read of an error's body; what comes after them is left."""
UNPACKED_BYTES = 64 * 2**10
"""Of a packed body at a time: half a megabyte of gzip can hold 500."""
PIECE_BYTES = 4096
"""Of a stream of events, read before everything else has a turn: 450 of the smallest events."""
UNPACKED_HERE = ("gzip", "x-gzip", "deflate")
AS_IT_IS = {"accept-encoding": "identity"}
"""Sent with every request: an answer of a few bytes at a time gains nothing by being packed."""


READ_HERE = ("identity", "", *UNPACKED_HERE)


class BodyRefused(httpx2.RemoteProtocolError):
    """A body is not read to its end. The text completes the sentence that starts with the worker's name."""


async def bound_response(response: httpx2.Response) -> None:
    """A response hook: refuse too many headers, unpack the body piece by piece, and end an error's where it is long.

    Raises:
        httpx2.RemoteProtocolError: there are too many.
        BodyRefused: an answer is packed in a way that is not unpacked here; an error's body is left out then.
    """
    if len(response.headers.raw) > MAX_HEADERS:
        await response.aclose()
        raise httpx2.RemoteProtocolError(f"{len(response.headers.raw)} headers")
    packed = _packing(response.headers)
    is_read = packed in READ_HERE
    if response.is_success and not is_read:
        await response.aclose()
        raise BodyRefused(f"sent an answer packed as {packed!r}, which it was asked not to do.")
    if isinstance(response.stream, httpx2.AsyncByteStream):
        most: float = inf if response.is_success else MAX_ERROR_BYTES if is_read else 0
        response.stream = BoundedBody(response.stream, most, is_packed=packed in UNPACKED_HERE)
        response.headers.pop("content-encoding", None)  # or the client unpacks it once more


class BoundedBody(httpx2.AsyncByteStream):
    """The first `most` bytes of a body, unpacked."""

    def __init__(self, body: httpx2.AsyncByteStream, most: float = inf, *, is_packed: bool = False) -> None:
        self._body, self._most, self._is_packed = body, most, is_packed

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = self._most
        async for piece in _unpack_pieces(self._body) if self._is_packed else self._body:
            yield piece if len(piece) <= left else piece[: int(left)]
            left -= len(piece)
            if left <= 0:
                return

    async def aclose(self) -> None:
        """Close the body."""
        await self._body.aclose()


def _packing(headers: Mapping[str, str]) -> str:
    return headers.get("content-encoding", "identity").strip().lower()


def _parts(unpack: Any, packed: bytes) -> Iterator[bytes]:
    """Unpack a part of a body.

    Raises:
        httpx2.DecodingError: it is not packed as it says.
    """
    try:
        while part := unpack.decompress(packed, UNPACKED_BYTES):
            yield part
            packed = unpack.unconsumed_tail
    except zlib.error as exc:
        raise httpx2.DecodingError(str(exc)) from exc


async def _unpack_pieces(body: httpx2.AsyncByteStream) -> AsyncIterator[bytes]:
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32)  # gzip's or zlib's, whatever its first bytes say
    async for packed in body:
        for part in _parts(unpack, packed):
            yield part
            await asyncio.sleep(0)  # a bomb takes its time from its own call alone
        if unpack.eof:
            return


async def in_small_pieces(body: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    """`body` in pieces that take a few milliseconds to read as events, with a turn for everything else in between: a
    server that floods brings more than the loop can wait for, without a pause.
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
    """See `bound_response`, for a response that is read past httpx2.

    Raises:
        httpx2.RemoteProtocolError: it has too many headers.
        BodyRefused: it is an answer that is packed in a way that is not unpacked here.
    """
    if len(response.raw_headers) > MAX_HEADERS:
        raise httpx2.RemoteProtocolError(f"{len(response.raw_headers)} headers")
    packed = _packing(response.headers)
    if 200 <= response.status < 300 and packed not in READ_HERE:
        raise BodyRefused(f"sent an answer packed as {packed!r}, which it was asked not to do.")


async def pieces_of(response: aiohttp.ClientResponse) -> AsyncGenerator[bytes]:
    """Yield the body as it arrives, unpacked, in pieces as of `in_small_pieces`.

    Raises:
        httpx2.DecodingError: it is not packed as it says.
    """
    content, n_bytes = response.content, 0
    unpack = zlib.decompressobj(zlib.MAX_WBITS | 32) if _packing(response.headers) in UNPACKED_HERE else None
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
    """Return the beginning of an error's body; nothing of one that is packed in a way that is not unpacked here."""
    body = bytearray()
    if _packing(response.headers) in READ_HERE:
        async with aclosing(pieces_of(response)) as pieces:
            async for piece in pieces:
                body += piece
                if len(body) >= MAX_ERROR_BYTES:
                    break
    return bytes(body[:MAX_ERROR_BYTES])


async def read_whole(response: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """The body of an answer that is no stream.

    Raises:
        BodyRefused: it is longer than `most_bytes`.
    """
    body = bytearray()
    async with aclosing(pieces_of(response)) as pieces:
        async for piece in pieces:
            body += piece
            if len(body) > most_bytes:
                raise BodyRefused(f"sent an answer of more than {most_bytes} bytes.")
    return bytes(body)


def end_with_connection(response: aiohttp.ClientResponse) -> None:
    """End the body of a response when its connection ends.

    aiohttp's C parser (3.14.5) forgets the body that it reads when its framing breaks, closes the
    connection and wakes nobody, so the reader waits for bytes that cannot come, without even the read
    timeout.
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

    closed.remove_done_callback(_retrieve)  # the connection has been used before
    closed.add_done_callback(_retrieve)
    closed.add_done_callback(end)
    content.on_eof(forget)  # the connection is kept, the body is not


def _retrieve(closed: asyncio.Future[None]) -> None:
    """asyncio logs an error that nobody retrieved; a reset is told by the body that it breaks."""
    if not closed.cancelled():
        closed.exception()
