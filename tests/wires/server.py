"""HTTP/1.1 server on 127.0.0.1 that streams the events of a `Wire` for an `Answer`, with faults.

It uses plain asyncio, so that a test controls each byte: chunked transfer encoding, keep-alive, resets in the middle
of a body, silence. It records each request and when its client disconnected.
"""

import asyncio
import json
import re
import socket
import ssl
import struct
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

READING_TURNS = 50


@dataclass(frozen=True)
class Answer:
    """Response to one request. `*_after` count the wire's own events, of which the first comes before any word."""

    text: str = "It is four."
    reasoning: str = ""
    finish: str | None = None
    """Finish reason in the provider's words, or None for the usual one."""
    input_tokens: int = 12
    cached_tokens: int = 0
    output_tokens: int = 7
    reasoning_tokens: int = 0
    model: str = "the-model-20261101"
    status: int = 200
    error: str = "something is wrong"
    error_code: str | None = None
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """Whole error body, if it does not have the provider's usual shape."""
    extra: dict[str, Any] = field(default_factory=dict)
    """Values for one wire only."""
    resets: bool = False
    """Reset the connection before the first byte of the response."""
    cut_after: int | None = None
    """Reset the connection."""
    end_after: int | None = None
    """End the HTTP body correctly, but before the wire's end."""
    stall_after: int | None = None
    """Send nothing more until the client disconnects."""
    pause_after: int | None = None
    """Wait until the client has read the earlier events, then continue."""
    late_s: float = 0.0
    """Seconds of the pause, or without a pause before the headers."""
    garble_after: int | None = None
    """Send an event that is not JSON."""
    error_after: int | None = None
    """Send the wire's error event, then end."""
    instead: tuple[bytes, ...] | None = None
    """Events to send instead of the wire's own."""


class Wire(Protocol):
    """Bytes of one provider's protocol."""

    garbled: bytes

    def events(self, answer: Answer) -> list[bytes]: ...
    def error_event(self, answer: Answer) -> bytes: ...
    def error_body(self, answer: Answer) -> bytes: ...


class _Reader(asyncio.StreamReader):
    """Stream reader that reports a disconnect immediately, without consuming bytes that are still unread."""

    def __init__(self) -> None:
        super().__init__(limit=2**26)
        self.gone = asyncio.Event()

    def feed_eof(self) -> None:
        super().feed_eof()
        self.gone.set()

    def put_back(self, piece: bytes) -> None:
        self._buffer[:0] = piece  # type: ignore[attr-defined]

    def set_exception(self, exc: BaseException) -> None:
        super().set_exception(exc)
        self.gone.set()


@dataclass
class Request:
    """A received request and the state of its client."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """The server has sent its whole answer."""
    hung_up: asyncio.Event = field(default_factory=asyncio.Event)
    """The client disconnected before the end of the answer."""


class WireServer:
    """Stand-in for one provider. Sends `answers` in turn, and afterwards the result of `respond`."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.respond: Callable[[Request], Answer] = lambda request: Answer()
        self.answers: deque[Answer] = deque()
        self.requests: list[Request] = []
        self.connections = 0
        self.resets_used = False
        """Reset a used connection when the next request arrives. New connections are served."""
        self.resets_new = False
        """Reset each new connection when its first request arrives."""
        self.open_requests = 0
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def body(self) -> dict[str, Any]:
        return self.requests[-1].body

    def connect(self) -> asyncio.StreamReaderProtocol:
        return asyncio.StreamReaderProtocol(_Reader(), self._serve)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert isinstance(reader, _Reader)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            if self.resets_new:
                await reader.readexactly(1)
                return _reset(writer)
            while await self._one(reader, writer):
                first = await reader.read(1)
                if self.resets_used or not first:
                    return _reset(writer)
                reader.put_back(first)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # Python 3.11's streams log a cancelled connection task as an error.
        finally:
            writer.close()

    async def _one(self, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. Return whether the connection may be reused."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        request_line, *lines = head.strip().split("\r\n")
        headers = {key.lower(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
        content = await reader.readexactly(int(headers.get("content-length", "0")))
        request = Request(request_line.split(" ")[1], headers, json.loads(content))
        self.requests.append(request)
        answer = self.answers.popleft() if self.answers else self.respond(request)
        if answer.resets:
            _reset(writer)
            return False
        self.open_requests += 1
        try:
            ended = await self._answer(answer, reader, writer)
        finally:
            self.open_requests -= 1
            if reader.gone.is_set():
                request.hung_up.set()
            request.answered.set()
        return ended and not reader.gone.is_set()

    async def _answer(self, answer: Answer, reader: _Reader, writer: asyncio.StreamWriter) -> bool:
        if answer.pause_after is None:
            await asyncio.sleep(answer.late_s)
        if answer.status != 200:
            content = self.wire.error_body(answer) if answer.body is None else answer.body
            extra = "".join(f"{key}: {value}\r\n" for key, value in answer.headers.items())
            head = f"HTTP/1.1 {answer.status} Unhappy\r\ncontent-type: application/json\r\n{extra}"
            writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
            await writer.drain()
            return True
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        events = list(self.wire.events(answer) if answer.instead is None else answer.instead)
        for index in range(len(events) + 1):
            if index == answer.pause_after:
                await writer.drain()
                await let_read(answer.late_s)
            if index == answer.cut_after:
                await writer.drain()
                _reset(writer)
                return False
            if index == answer.stall_after:
                await reader.gone.wait()
                return False
            if index == answer.garble_after:
                _chunk(writer, self.wire.garbled)
            if index == answer.error_after:
                _chunk(writer, self.wire.error_event(answer))
            if index in (answer.end_after, answer.error_after, len(events)) or reader.gone.is_set():
                break
            _chunk(writer, events[index])
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        return True

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _chunk(writer: asyncio.StreamWriter, event: bytes) -> None:
    writer.write(f"{len(event):x}\r\n".encode() + event + b"\r\n")


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close with a TCP reset."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def let_read(wait_s: float = 0.0) -> None:
    """Wait until a client on this event loop has read what was sent. Count turns of the loop, because seconds are not
    enough on a busy machine.
    """
    await asyncio.sleep(max(wait_s, 0.02))
    for _ in range(READING_TURNS):
        await asyncio.sleep(0)


@asynccontextmanager
async def serving(
    wire: Wire, *answers: Answer, tls: ssl.SSLContext | None = None
) -> AsyncIterator[WireServer]:
    """Serve `wire` on a free port."""
    server = WireServer(wire)
    server.answers.extend(answers)
    listener = await asyncio.get_running_loop().create_server(server.connect, "127.0.0.1", 0, ssl=tls)
    server.url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.close()


PIECE = "\x1f"
"""Separator of an answer's pieces, if they are not its words."""


def tokens(text: str) -> list[str]:
    """Split a text into the pieces that are streamed."""
    if PIECE in text:
        return [piece for piece in text.split(PIECE) if piece]
    return re.findall(r"\s*\S+|\s+$", text)


def sse(data: object, event: str | None = None) -> bytes:
    """Return a server-sent event. Encode `data` as JSON unless it is bytes."""
    content = data if isinstance(data, bytes) else json.dumps(data).encode()
    return (f"event: {event}\n".encode() if event else b"") + b"data: " + content + b"\n\n"
