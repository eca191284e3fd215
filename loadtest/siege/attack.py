"""The attacker: `python -m loadtest.siege.attack KIND URL --count 5000 --addresses 1`, until it is ended.

It prints one line of JSON per second: how many of its connections are open, were made, were closed by the
server. It knows nothing of the ordinary clients. Every attack is plain HTTP/1.1 over TCP, from 127.0.0.1 or
several addresses of the loopback.
"""

import argparse
import asyncio
import itertools
import json
import os
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from program.process import allow_open_files

BATCH = 200
"""Connections made in one call of a worker thread."""
HEADER_BYTES = 100_000_000
PROMPT_BYTES = 19_000_000
PIECE_BYTES = 1_000_000
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"


class Attack:
    """One attack.

    Args:
        host, port: of the server.
        count: concurrent connections.
        addresses: source addresses on the loopback.
    """

    def __init__(self, host: str, port: int, count: int, addresses: int) -> None:
        self._host, self._port, self._count = host, port, count
        self._sources: Iterator[str] = itertools.cycle(f"127.0.0.{number + 1}" for number in range(addresses))
        self._head = HEAD.format(host=f"{host}:{port}").encode()
        self.open = self.made = self.closed = self.failed = 0
        self.answers: dict[str, int] = {}

    async def hold_idle_connections(self) -> None:
        """Connect and send nothing."""
        await self._hold(b"")

    async def send_unfinished_bodies(self) -> None:
        """Announce a body and send its first byte."""
        await self._hold(self._head + b"content-length: 1000\r\n\r\n{")

    async def send_large_unfinished_bodies(self) -> None:
        """The same with more than a proxy buffers, so that it reaches what is behind."""
        await self._hold(self._head + b"content-length: 1000000\r\n\r\n" + b"{" * 40_000)

    async def send_huge_headers(self) -> None:
        """One header of 100 MB."""
        head = self._head + b"x-long: "
        await self._repeat(head, b"a" * PIECE_BYTES, HEADER_BYTES // PIECE_BYTES, b"\r\n\r\n")

    async def send_huge_prompts(self) -> None:
        """A request with a prompt of 19 MB of words."""
        content = "word " * (PROMPT_BYTES // 5)
        body = json.dumps({"model": "quick", "messages": [{"role": "user", "content": content}]}).encode()
        head = self._head + b"content-length: %d\r\n\r\n" % len(body)
        await self._repeat(head, body, 1, b"")

    async def _hold(self, data: bytes) -> None:
        """Hold `count` connections that have sent `data`; closed ones are opened again a second later."""
        with selectors.DefaultSelector() as open_sockets:
            while True:
                while len(open_sockets.get_map()) < self._count:
                    await asyncio.to_thread(self._connect_some, open_sockets, data)
                    self.open = len(open_sockets.get_map())
                await asyncio.sleep(1)
                for key, _ in open_sockets.select(0):
                    self._check(open_sockets, key.fileobj)

    def _connect_some(self, open_sockets: selectors.BaseSelector, data: bytes) -> None:
        for _ in range(min(BATCH, self._count - len(open_sockets.get_map()))):
            connection = socket.socket()
            try:
                connection.settimeout(5)
                connection.bind((next(self._sources), 0))
                connection.connect((self._host, self._port))
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

    async def _repeat(self, head: bytes, piece: bytes, times: int, tail: bytes) -> None:
        """`count` concurrent requests, again and again."""

        async def again() -> None:
            while True:
                self.open += 1
                try:
                    await self._send(head, piece, times, tail)
                    self.closed += 1
                except (OSError, TimeoutError, asyncio.IncompleteReadError):
                    self.failed += 1
                self.open -= 1
                await asyncio.sleep(1)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._count):
                tasks.create_task(again())

    async def _send(self, head: bytes, piece: bytes, times: int, tail: bytes) -> None:
        """Send as fast as the server reads; then wait for the first line of the response."""
        source = (next(self._sources), 0)
        reader, writer = await asyncio.open_connection(self._host, self._port, local_addr=source)
        self.made += 1
        try:
            writer.write(head)
            for _ in range(times):
                writer.write(piece)
                await writer.drain()
            writer.write(tail)
            async with asyncio.timeout(30):
                status = (await reader.readuntil(b"\r\n")).decode().strip()
                self.answers[status] = self.answers.get(status, 0) + 1
        finally:
            writer.transport.abort()

    async def report(self) -> None:
        """Print the counts every second; exit when the parent process is gone."""
        parent = os.getppid()
        while os.getppid() == parent:
            counts = {"open": self.open, "made": self.made, "closed": self.closed, "failed": self.failed}
            print(json.dumps(counts | self.answers), flush=True)
            await asyncio.sleep(1)
        raise SystemExit(1)


KINDS = {
    "idle": Attack.hold_idle_connections,
    "unfinished": Attack.send_unfinished_bodies,
    "headers": Attack.send_huge_headers,
    "prompts": Attack.send_huge_prompts,
}
EXTRA_KINDS = {"large_unfinished": Attack.send_large_unfinished_bodies}
"""Attacks that are known not to be withstood, and are run by name only."""


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.siege.attack", description=__doc__)
    parser.add_argument("kind", choices=[*KINDS, *EXTRA_KINDS])
    parser.add_argument("url")
    parser.add_argument("--count", type=int, required=True, help="concurrent connections")
    parser.add_argument("--addresses", type=int, default=1, help="source addresses, from 127.0.0.1 on")
    read = parser.parse_args()
    allow_open_files(read.count + 200)
    parts = urlsplit(str(read.url))

    async def run() -> None:
        attack = Attack(parts.hostname or "127.0.0.1", parts.port or 80, read.count, read.addresses)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(attack.report())
            tasks.create_task((KINDS | EXTRA_KINDS)[read.kind](attack))

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


if __name__ == "__main__":
    main()
