"""Server with faults below the provider's protocol: no HTTP, broken framing, endless bytes.

It knows no provider: a test passes the first bytes of one, so that each fault can be sent to each worker, before its
first word and after it.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tests.wires.server import let_read

EVENT_STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = EVENT_STREAM + b"transfer-encoding: chunked\r\n\r\n"
DRIP_S = 0.02


@dataclass(frozen=True)
class Fault:
    """Bytes sent once a request has arrived: `head`, the provider's first words if `speaks`, `tail`, then `drips`
    repeatedly, if any.
    """

    head: bytes = CHUNKED
    speaks: bool = False
    tail: bytes = b""
    drips: bytes = b""
    closes: bool = False
    """Close the connection at the end. Otherwise it stays open until the client closes it."""
    keeps_alive: bool = False
    """The HTTP response is complete, so the client may reuse the connection."""


def chunk(content: bytes) -> bytes:
    """Return one chunk of the chunked transfer coding."""
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


NOT_HTTP = {
    "another protocol": Fault(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "another protocol that closes": Fault(b"220 mail.example ESMTP\r\n", closes=True),
    "a TLS alert": Fault(b"\x15\x03\x01\x00\x02\x02\x28", closes=True),
    "noise": Fault(bytes(range(256)) * 20),
    "a header of 200 kB": Fault(EVENT_STREAM + b"x-long: " + b"x" * 200_000 + b"\r\n\r\n"),
    "ten thousand headers": Fault(
        EVENT_STREAM + b"".join(b"x-%d: y\r\n" % n for n in range(10_000)) + b"\r\n"
    ),
    "a non-numeric status": Fault(b"HTTP/1.1 OK OK\r\n\r\n"),
    "a close without data": Fault(b"", closes=True),
    "a wrong content encoding": Fault(
        EVENT_STREAM + b"content-encoding: gzip\r\ncontent-length: 9\r\n\r\nnot gzip!", keeps_alive=True
    ),
}
SILENT = {
    "headers that drip": Fault(EVENT_STREAM, drips=b"x"),
    "headers line by line": Fault(EVENT_STREAM, drips=b"x-a: b\r\n"),
}
BROKEN_FRAMING = {
    "a non-numeric chunk length": b"zz\r\nhello\r\n",
    "a negative chunk length": b"-5\r\nhello\r\n",
    "a chunk longer than its length": b"3\r\nhello hello\r\n5\r\nhello\r\n",
    "noise instead of a chunk": bytes(range(256)) * 20,
    "an endless chunk length": b"1" * 100_000,
    "a second response": CHUNKED,
}
COMMENTS = {
    "comments": chunk(b": ping\n\n"),
    "a comment that never ends": chunk(b":"),
    "empty lines": chunk(b"\n"),
}


class FaultServer:
    """Server that sends one fault on each connection."""

    def __init__(self, fault: Fault, words: bytes) -> None:
        self._fault, self._words = fault, words
        self.requests = 0
        self.open_connections = 0
        self.heard = asyncio.Event()
        """Set by the test once the client has read the first words. The rest is sent then."""
        self.url = ""
        self._lets_read = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def play(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.open_connections += 1
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            length = next(
                int(line.split(b":")[1])
                for line in head.lower().split(b"\r\n")
                if line.startswith(b"content-length")
            )
            await reader.readexactly(length)
            await self._say(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # The client disconnected, or the test ended.
        finally:
            self.open_connections -= 1
            self._tasks.discard(task)
            writer.close()

    def let_read(self) -> None:
        """From now on, wait until the client can have read the first words before sending the rest."""
        self._lets_read = True

    async def _say(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        fault = self._fault
        if fault.speaks and self._lets_read:
            writer.write(fault.head + chunk(self._words))
            await let_read()
            writer.write(fault.tail)
        elif fault.speaks and not self.heard.is_set():
            writer.write(fault.head + chunk(self._words))
            await self.heard.wait()
            writer.write(fault.tail)
        elif fault.speaks:
            writer.write(fault.head + chunk(self._words) + fault.tail)
        else:
            writer.write(fault.head + fault.tail)
        await writer.drain()
        if fault.closes:
            return
        gone = asyncio.create_task(reader.read())
        try:
            for _ in itertools.count():
                done, _ = await asyncio.wait([gone], timeout=DRIP_S if fault.drips else None)
                if done:
                    return
                writer.write(fault.drips)
        finally:
            gone.cancel()

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def faulty(fault: Fault, words: bytes = b"") -> AsyncIterator[FaultServer]:
    """Serve `fault` on a free port. `words`: first bytes of a provider's answer."""
    server = FaultServer(fault, words)
    listener = await asyncio.start_server(server.play, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await server.close()
