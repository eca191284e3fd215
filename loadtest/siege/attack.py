"""The attacker: `python -m loadtest.siege.attack KIND URL --count 5000 --addresses 1`, until it is ended.

It says one line of JSON a second: how many of its connections are open, were made, were closed by the server. It knows nothing of the
ordinary clients. Every attack is plain HTTP/1.1 over TCP, from 127.0.0.1 or from several addresses of the loopback.
"""

import argparse
import asyncio
import itertools
import json
import os
import resource
import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

AT_ONCE = 200
"""Connections made between two looks at the clock."""
HEADER_BYTES = 100_000_000
PROMPT_BYTES = 19_000_000
PIECE_BYTES = 1_000_000
HEAD = "POST /v1/chat/completions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"


class Attack:
    """One run of it.

    Args:
        host, port: what is attacked.
        count: connections at once.
        addresses: of the loopback, to come from.
    """

    def __init__(self, host: str, port: int, count: int, addresses: int) -> None:
        self._host, self._port, self._count = host, port, count
        self._sources: Iterator[str] = itertools.cycle(f"127.0.0.{number + 1}" for number in range(addresses))
        self._head = HEAD.format(host=f"{host}:{port}").encode()
        self.open = self.made = self.closed = self.failed = 0
        self.answers: dict[str, int] = {}

    async def idle(self) -> None:
        """Connect and say nothing."""
        await self._hold(b"")

    async def unfinished(self) -> None:
        """Announce a body and send its first byte."""
        await self._hold(self._head + b"content-length: 1000\r\n\r\n{")

    async def large_unfinished(self) -> None:
        """The same with more than a proxy keeps for itself: it reaches what is behind."""
        await self._hold(self._head + b"content-length: 1000000\r\n\r\n" + b"{" * 40_000)

    async def headers(self) -> None:
        """One header of 100 MB."""
        head = self._head + b"x-long: "
        await self._repeat(head, b"a" * PIECE_BYTES, HEADER_BYTES // PIECE_BYTES, b"\r\n\r\n")

    async def prompts(self) -> None:
        """A request with a prompt of 19 MB of words."""
        content = "word " * (PROMPT_BYTES // 5)
        body = json.dumps({"model": "quick", "messages": [{"role": "user", "content": content}]}).encode()
        head = self._head + b"content-length: %d\r\n\r\n" % len(body)
        await self._repeat(head, body, 1, b"")

    async def _hold(self, data: bytes) -> None:
        """`count` connections that have sent `data`; those that were closed are made again a second later."""
        with selectors.DefaultSelector() as held:
            while True:
                while len(held.get_map()) < self._count:
                    await asyncio.to_thread(self._connect_some, held, data)
                    self.open = len(held.get_map())
                await asyncio.sleep(1)
                for key, _ in held.select(0):
                    self._look(held, key.fileobj)

    def _connect_some(self, held: selectors.BaseSelector, data: bytes) -> None:
        for _ in range(min(AT_ONCE, self._count - len(held.get_map()))):
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
                held.register(connection, selectors.EVENT_READ)

    def _look(self, held: selectors.BaseSelector, connection: Any) -> None:
        try:
            is_open = bool(connection.recv(65_536))
        except OSError:
            is_open = False
        if not is_open:
            self.closed += 1
            held.unregister(connection)
            connection.close()

    async def _repeat(self, head: bytes, piece: bytes, times: int, tail: bytes) -> None:
        """`count` at once, again and again."""

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
        """As fast as it is taken; then wait for the answer's first line."""
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
                self._told((await reader.readuntil(b"\r\n")).decode().strip())
        finally:
            writer.transport.abort()

    def _told(self, line: str) -> None:
        self.answers[line] = self.answers.get(line, 0) + 1

    async def report(self) -> None:
        """How it stands, every second; over when who started it is gone."""
        parent = os.getppid()
        while os.getppid() == parent:
            counts = {"open": self.open, "made": self.made, "closed": self.closed, "failed": self.failed}
            print(json.dumps(counts | self.answers), flush=True)
            await asyncio.sleep(1)
        raise SystemExit(1)


KINDS = ("idle", "unfinished", "headers", "prompts")
EXTRA_KINDS = ("large_unfinished",)


def allow_files(count: int) -> None:
    """Let this process open so many files beside its own.

    Raises:
        SystemExit: the machine does not let it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = count + 200
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise SystemExit(
            f"{wanted} open files are needed, and `ulimit -H -n` is {hard}. Raise it, or lower --count."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted) if soft >= 0 else wanted, hard))


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.siege.attack", description=__doc__)
    parser.add_argument("kind", choices=KINDS + EXTRA_KINDS)
    parser.add_argument("url")
    parser.add_argument("--count", type=int, required=True, help="connections at once")
    parser.add_argument("--addresses", type=int, default=1, help="of the loopback, from 127.0.0.1 on")
    given = parser.parse_args()
    allow_files(given.count)
    parts = urlsplit(given.url)

    async def run() -> None:
        attack = Attack(parts.hostname or "127.0.0.1", parts.port or 80, given.count, given.addresses)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(attack.report())
            tasks.create_task(getattr(attack, given.kind)())

    with suppress(KeyboardInterrupt):
        asyncio.run(run())


if __name__ == "__main__":
    main()
