"""Decoding of request bodies in gzip, deflate and zstd, within limits.

Decoding happens after authentication, so that only clients with a key can send bodies that expand.
"""

import asyncio
import zlib
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AsyncExitStack

from conductor.errors import BadTask, WrongContentType, quote
from serving.edge.checks import too_large

STEP_BYTES = 1_048_576
"""Output of one decoding step, after which other tasks run."""
MOST_ZSTD_WINDOW_BYTES = 8_388_608
"""Largest window that RFC 9659 allows."""
ZLIB_METHOD, ZLIB_CHECK = 8, 31
MOST_MEMBERS = 100
"""Limit for the members of a gzip body and the frames of a zstd body. Clients send one."""
ZSTD_BYTES = 64
"""Bytes of input per call of the zstd decoder. Its output is not bounded: 4 bytes may expand to 128 kB."""
ZSTD_STEP_BYTES = 65_536
"""Bytes of input after which other tasks run."""
MOST_AT_ONCE_BYTES = 1_048_576
"""Decoded size above which bodies are decoded one at a time. One encoded megabyte can expand to a thousand.
"""
FIELD = "Content-Encoding"


async def decode(pieces: Iterator[bytes], most: int, long: asyncio.Lock) -> bytes:
    """Decode a body in steps to at most `most` bytes. Above `MOST_AT_ONCE_BYTES` it holds `long`, so that
    several cannot exhaust the memory.

    Raise TooLarge, or BadTask for an invalid body.
    """
    decoded = bytearray()
    try:
        async with AsyncExitStack() as lock:
            for piece in pieces:
                if len(decoded) <= MOST_AT_ONCE_BYTES < len(decoded) + len(piece):
                    await lock.enter_async_context(long)
                decoded += piece
                if len(decoded) > most:
                    raise too_large(most)
                await asyncio.sleep(0)
    except (OSError, EOFError, zlib.error, ValueError) as exc:
        message = "The request body does not match its Content-Encoding, or it is incomplete."
        raise BadTask(message, param=FIELD) from exc
    return bytes(decoded)


def _gzip(body: bytes) -> Iterator[bytes]:
    """Yield the pieces of members (RFC 1952) and final zeros. `gzip.GzipFile` accepts any number of empty
    members, and takes five seconds for 20 MB.
    """
    rest = body
    for _ in range(MOST_MEMBERS):
        rest = (yield from _inflate(rest, zlib.MAX_WBITS | 16)).lstrip(b"\0")
        if not rest:
            return
    raise EOFError


def _deflate(body: bytes) -> Iterator[bytes]:
    """Yield the decoded pieces. The format has a zlib header, but some clients omit it."""
    has_header = len(body) > 1 and body[0] & 15 == ZLIB_METHOD and not int.from_bytes(body[:2]) % ZLIB_CHECK
    if (yield from _inflate(body, zlib.MAX_WBITS if has_header else -zlib.MAX_WBITS)):
        raise EOFError


def _inflate(body: bytes, window_bits: int) -> Generator[bytes, None, bytes]:
    """Yield the decoded pieces of one stream. Return the input that follows the stream."""
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

    decoder, at = zstandard.ZstdDecompressor(max_window_size=MOST_ZSTD_WINDOW_BYTES), 0
    try:
        for _ in range(MOST_MEMBERS):
            frame, piece, step = decoder.decompressobj(), bytearray(), at + ZSTD_STEP_BYTES
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
"""Supported encodings, for the `Accept-Encoding` header of an error (RFC 9110, section 15.5.16)."""


def find_decoder(names: Sequence[str]) -> Callable[[bytes], Iterator[bytes]]:
    """Return the decoder for a body with these encodings, or raise WrongContentType."""
    if len(names) > 1 or names[0] not in DECODERS:
        message = f"The Content-Encoding {quote(', '.join(names))} is not supported. Use one of {SERVED}, or send the body without encoding."
        raise WrongContentType(message, param=FIELD)
    return DECODERS[names[0]]
