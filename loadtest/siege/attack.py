"""Building blocks of attacks: loopback connections, requests in pieces, counters and a fake provider.

`attack_kinds.py` builds the attacks from them.
"""

import asyncio
import itertools
import json
import selectors
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

BATCH = 200
"""Number of connections that one call in a worker thread opens."""
ANSWERS_WITHIN_S = 30.0
PAUSE_S = 1.0
"""Seconds between two requests on one attacking connection."""
SMALL_BUFFER_BYTES = 4096
REQUEST_ERRORS = (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError)
Flood = Callable[[], Iterable[bytes]]


class AttackFailedError(OSError):
    """The server rejected a request that the attack needs. It counts as one more failed request."""


@dataclass(frozen=True)
class Orders:
    """Task of an attacker. The attacker reads it as JSON from its standard input.

    Args:
        kind: the name of the attack in `attack_kinds.py`.
        addresses: the number of source addresses on the loopback.
        keys: the secrets of API keys by name. A key that is missing here is not sent.
        store: the server's SQLite file, or "".
        upstream_port: the port at which the server expects its provider, or 0.
    """

    kind: str
    host: str
    port: int
    count: int
    addresses: int = 1
    keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    store: str = ""
    upstream_port: int = 0


class Attack:
    def __init__(self, orders: Orders) -> None:
        self.orders = orders
        self._sources = itertools.cycle(f"127.0.0.{number + 1}" for number in range(orders.addresses))
        self.open = self.made = self.closed = self.failed = 0
        self.answers: dict[str, int] = {}
        self.breaches: dict[str, int] = {}

    @property
    def counts(self) -> dict[str, Any]:
        names = ("open", "made", "closed", "failed", "answers", "breaches")
        return {name: getattr(self, name) for name in names}

    def head(self, method: str, path: str, *headers: str, key: str = "") -> bytes:
        """Return the head of a request with complete header lines, without its final empty line. `key` is a
        name.
        """
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.orders.host}:{self.orders.port}", *headers]
        if secret := self.orders.keys.get(key):
            lines.append(f"authorization: Bearer {secret}")
        return "".join(f"{line}\r\n" for line in lines).encode("latin-1")

    def post(self, path: str, body: bytes, kind: str = "application/json", key: str = "") -> bytes:
        headers = (f"content-type: {kind}", f"content-length: {len(body)}")
        return self.head("POST", path, *headers, key=key) + b"\r\n" + body

    def chat(self, model: str, text: str, key: str = "attacker", **more: Any) -> bytes:
        body = {"model": model, "messages": [{"role": "user", "content": text}], **more}
        return self.post("/v1/chat/completions", json.dumps(body).encode(), key=key)

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a connection inside the block, and abort it at the end."""
        source = (next(self._sources), 0)
        self.open += 1
        try:
            address = (self.orders.host, self.orders.port)
            reader, writer = await asyncio.open_connection(*address, local_addr=source)
            self.made += 1
            try:
                yield reader, writer
            finally:
                writer.transport.abort()
        finally:
            self.open -= 1
            self.closed += 1

    async def exchange(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
    ) -> tuple[int, bytes]:
        """Send a whole request and read the whole answer."""
        writer.write(request)
        await writer.drain()
        async with asyncio.timeout(ANSWERS_WITHIN_S):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            status = int(head.split()[1])
            self.count_answer(status)
            lines = dict(line.lower().split(": ", 1) for line in head.split("\r\n")[1:] if ": " in line)
            if "content-length" in lines:
                return status, await reader.readexactly(int(lines["content-length"]))
            return status, await reader.read()

    async def ask(self, request: bytes) -> tuple[int, dict[str, Any]]:
        """Send a request on its own connection. Return the status and the JSON of the answer."""
        async with self.connection() as (reader, writer):
            status, body = await self.exchange(reader, writer, request)
        return status, json.loads(body) if body.startswith(b"{") else {}

    async def prepare(self, request: bytes) -> dict[str, Any]:
        """Send a request that the attack needs, and return its JSON. Raise AttackFailedError for an error."""
        status, answer = await self.ask(request)
        if status >= 300:
            raise AttackFailedError(f"{status} {answer}")
        return answer

    async def send(self, pieces: Iterable[bytes]) -> int:
        """Send pieces as fast as the server reads them. Return the status of the response."""
        async with self.connection() as (reader, writer):
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                line = (await reader.readuntil(b"\r\n")).decode("latin-1")
            status = int(line.split()[1])
            self.count_answer(status)
            return status

    def count_answer(self, status: int) -> None:
        self.answers[str(status)] = self.answers.get(str(status), 0) + 1

    def breach(self, what: str) -> None:
        """Count behaviour that the server must never show."""
        self.breaches[what] = self.breaches.get(what, 0) + 1

    async def repeat(self, one: Callable[[], Awaitable[object]], pause_s: float = PAUSE_S) -> None:
        """Call `one` again and again on every connection. Errors are counted, not raised."""

        async def again() -> None:
            while True:
                try:
                    await one()
                except REQUEST_ERRORS:
                    self.failed += 1
                    await asyncio.sleep(PAUSE_S)
                await asyncio.sleep(pause_s)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.orders.count):
                tasks.create_task(again())

    async def hold(self, data: bytes, *, reads: bool = True) -> None:
        """Hold `count` connections open that have sent `data`, and reopen closed ones after a second. If
        responses are not read, the receive buffer is small.
        """
        with selectors.DefaultSelector() as open_sockets:
            while True:
                while len(open_sockets.get_map()) < self.orders.count:
                    await asyncio.to_thread(self._connect_some, open_sockets, data, reads)
                    self.open = len(open_sockets.get_map())
                await asyncio.sleep(PAUSE_S)
                for key, _ in open_sockets.select(0) if reads else ():
                    self._check(open_sockets, key.fileobj)

    def _connect_some(self, open_sockets: selectors.BaseSelector, data: bytes, reads: bool) -> None:
        for _ in range(min(BATCH, self.orders.count - len(open_sockets.get_map()))):
            connection = socket.socket()
            try:
                connection.settimeout(5)
                if not reads:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
                connection.bind((next(self._sources), 0))
                connection.connect((self.orders.host, self.orders.port))
                connection.sendall(data)
                connection.setblocking(False)
            except OSError:
                self.failed += 1
                connection.close()
                time.sleep(0.1)
            else:
                self.made += 1
                open_sockets.register(connection, selectors.EVENT_READ)

    def _check(self, open_sockets: selectors.BaseSelector, connection: Any) -> None:
        try:
            is_open = bool(connection.recv(65_536))
        except OSError:
            is_open = False
        if not is_open:
            self.closed += 1
            open_sockets.unregister(connection)
            connection.close()

    @asynccontextmanager
    async def provider(self, floods: Mapping[str, Flood]) -> AsyncGenerator[None]:
        """Run a fake provider for the attacked server's workers, with raw streamed lines by model."""

        async def answer(request: web.Request) -> web.StreamResponse:
            model = (await request.json())["model"]
            response = web.StreamResponse(headers={"content-type": "text/event-stream"})
            await response.prepare(request)
            try:
                for piece in floods[model]():
                    await response.write(piece)
            except ConnectionError:
                self.closed += 1
            return response

        app = web.Application()
        app.router.add_post("/v1/chat/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", self.orders.upstream_port).start()
            yield
        finally:
            await runner.cleanup()
