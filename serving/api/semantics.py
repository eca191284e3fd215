"""HTTP that the routes need not know: encoded bodies, and HEAD wherever GET is served.

Stands behind the authentication, so that a body that grows when it is decoded costs nothing unless a key pays for it.
"""

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import AsyncExitStack

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.errors import BadTask, PodiumError, WrongContentType, quote
from serving.api.respond import failure
from serving.edge.checks import ENCODING, WITH_BODY, check_text, encodings, too_large
from serving.edge.policy import UPLOAD, Policy

STEP_BYTES = 1_048_576
"""Decoded at once, between two turns of the event loop."""
MOST_ZSTD_WINDOW_BYTES = 8_388_608
"""RFC 9659."""
ZLIB_METHOD, ZLIB_CHECK = 8, 31
MOST_MEMBERS = 100
"""Of a gzip body, and frames of a zstd body. Clients send one."""
ZSTD_BYTES = 64
"""Given to the decoder at once: it takes no bound for what it gives, and 4 bytes may hold 128 kB."""
ZSTD_STEP_BYTES = 65_536
"""Of the encoded body, decoded between two turns of the event loop."""
MOST_AT_ONCE_BYTES = 1_048_576
"""A body that is longer when it is decoded waits until no other one is decoded: an encoded megabyte can hold a thousand."""
HEADER = "Content-Encoding"


class Semantics:
    """Stands before `app`.

    Args:
        app: the routes.
        policy: how long a decoded body may be, as it is now.
    """

    def __init__(self, app: ASGIApp, policy: Callable[[], Policy]) -> None:
        self._app, self._policy = app, policy
        self._long = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and scope["method"] == "HEAD":
            return await self._answer_head(scope, receive, send)
        if scope["type"] == "http" and scope["method"] in WITH_BODY and encodings(scope["headers"]):
            try:
                scope, receive = await self._decode(scope, receive)
            except PodiumError as exc:
                return await _refuse(exc)(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _answer_head(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the head of what GET answers. An answer that goes on is cancelled after its head."""
        until = asyncio.timeout(None)

        async def send_head(message: Message) -> None:
            if message["type"] == "http.response.body" and not until.expired():
                if message.get("more_body"):
                    until.reschedule(0)
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        try:
            async with until:
                await self._app({**scope, "method": "GET"}, receive, send_head)
        except TimeoutError:
            if not until.expired():
                raise

    async def _decode(self, scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
        decode, body = _decoder(scope), await _read(receive)
        policy, is_upload = self._policy(), scope["path"] == UPLOAD
        most = policy.max_upload_bytes if is_upload else policy.max_body_bytes
        decoded = await _decode(decode(body), most, self._long) if body else b""
        if not is_upload:
            check_text(decoded, policy.max_text_bytes)
        headers = [each for each in scope["headers"] if each[0] not in (ENCODING, b"content-length")]
        headers.append((b"content-length", b"%d" % len(decoded)))
        return {**scope, "headers": headers}, _replay(decoded, receive)


async def _decode(pieces: Iterator[bytes], most: int, long: asyncio.Lock) -> bytes:
    """Return what the pieces hold together.

    Args:
        pieces: of the decoded body.
        most: bytes that it may have.
        long: held while a body longer than `MOST_AT_ONCE_BYTES` is decoded, so that many cannot fill the memory together.

    Raises:
        TooLarge: that is longer than `most` bytes.
        BadTask: the encoded body is damaged.
    """
    decoded = bytearray()
    try:
        async with AsyncExitStack() as held:
            for piece in pieces:
                if len(decoded) <= MOST_AT_ONCE_BYTES < len(decoded) + len(piece):
                    await held.enter_async_context(long)
                decoded += piece
                if len(decoded) > most:
                    raise too_large(most)
                await asyncio.sleep(0)
    except (OSError, EOFError, zlib.error, ValueError) as exc:
        message = "The body is not of the encoding that the Content-Encoding header names, or is cut off."
        raise BadTask(message, param=HEADER) from exc
    return bytes(decoded)


def _gzip(body: bytes) -> Iterator[bytes]:
    """A body may have several members (RFC 1952), and zeros after them. `gzip.GzipFile` takes any number of empty ones, and
    five seconds for 20 MB of them.
    """
    rest = body
    for _ in range(MOST_MEMBERS):
        rest = (yield from _inflate(rest, zlib.MAX_WBITS | 16)).lstrip(b"\0")
        if not rest:
            return
    raise EOFError


def _deflate(body: bytes) -> Iterator[bytes]:
    """The encoding has a zlib header. Some clients send it without one."""
    has_header = len(body) > 1 and body[0] & 15 == ZLIB_METHOD and not int.from_bytes(body[:2]) % ZLIB_CHECK
    if (yield from _inflate(body, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)):
        raise EOFError


def _inflate(body: bytes, window_bits: int) -> Generator[bytes, None, bytes]:
    """Yield the pieces of one stream. Return what follows it."""
    stream = zlib.decompressobj(window_bits)
    yield stream.decompress(body, STEP_BYTES)
    while stream.unconsumed_tail and not stream.eof:
        yield stream.decompress(stream.unconsumed_tail, STEP_BYTES)
    while piece := stream.decompress(b"", STEP_BYTES) if not stream.eof else b"":
        yield piece
    if not stream.eof:
        raise EOFError
    return stream.unused_data


def _zstd(body: bytes) -> Generator[bytes]:
    import zstandard

    made, at = zstandard.ZstdDecompressor(max_window_size=MOST_ZSTD_WINDOW_BYTES), 0
    try:
        for _ in range(MOST_MEMBERS):
            frame, piece, step = made.decompressobj(), bytearray(), at + ZSTD_STEP_BYTES
            while not frame.eof:
                if at >= len(body):
                    raise EOFError
                piece += frame.decompress(body[at : at + ZSTD_BYTES])
                at += ZSTD_BYTES
                if len(piece) > STEP_BYTES or at > step:
                    yield bytes(piece)
                    piece.clear()
                    step = at + ZSTD_STEP_BYTES
            yield bytes(piece)
            at = min(at, len(body)) - len(frame.unused_data)
            if at == len(body):
                return
    except zstandard.ZstdError as exc:
        raise ValueError from exc
    raise EOFError


DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    "gzip": _gzip,
    "x-gzip": _gzip,
    "deflate": _deflate,
    "zstd": _zstd,
}
SERVED = "gzip, deflate, zstd"


def _decoder(scope: Scope) -> Callable[[bytes], Iterator[bytes]]:
    """Return what decodes the body.

    Raises:
        WrongContentType: the encoding is not served here.
    """
    names = encodings(scope["headers"])
    if len(names) > 1 or names[0] not in DECODERS:
        message = f"The Content-Encoding header is {quote(', '.join(names))}. Send the body as one of {SERVED}, or as it is."
        raise WrongContentType(message, param=HEADER)
    return DECODERS[names[0]]


def _refuse(error: PodiumError) -> ASGIApp:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        response = failure(Request(scope), error)
        if isinstance(error, WrongContentType):
            response.headers["accept-encoding"] = SERVED  # RFC 9110, section 15.5.16
        await response(scope, receive, send)

    return answer


async def _read(receive: Receive) -> bytes:
    """The whole body; the edge has bounded it."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives `body` as one message, and then what `receive` gives."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay
