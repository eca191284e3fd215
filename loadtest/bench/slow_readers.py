"""Memory per client for clients behind HAProxy that request a long answer and read nothing of it.

An answer is about 2.4 MB of events. The kernel, HAProxy and the router each buffer a bounded part of it, and
the router also keeps the text that the run has produced so far. When the buffers are full, the router stops
reading from the upstream. After `unread_s` (slow_readers.yaml), it drops the client.
"""

import asyncio
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from resource import getpagesize
from typing import NamedTuple
from urllib.parse import urlsplit

import orjson
import psutil

from loadtest.bench.figures import Figure, reading
from loadtest.rig import RigError
from loadtest.rig.client import CHAT, BenchClient, chat
from loadtest.rig.fake_openai import FakeOpenAI, Script
from loadtest.rig.ray_server import (
    BenchServer,
    fill_settings,
    listening_at,
    podium,
    production_environment,
    start_isolated,
)

READERS = 500
WORDS, CHARS = 2000, 1000
"""Number of words, and characters per word. Long words fill the buffers within seconds."""
RECEIVE_BYTES = 4096
"""Receive buffer of each client's socket. It is small, so that the kernel buffers little there."""
GAP_S = 0.01
STILL_S = 4
"""Memory counts as stable if it has not grown for this many seconds."""
MOST_S = 60
"""Seconds after which the bench stops waiting for stable memory, or for all clients to be dropped."""


class MemoryUse(NamedTuple):
    router: int
    haproxy: int
    kernel: int
    """Buffers of all TCP sockets of the machine."""


def figures(before: MemoryUse, full: MemoryUse, running: int, n_left: int) -> list[Figure]:
    """Compute the figures from the memory before and with all clients, and the runs then and at the end."""

    def megabytes(name: str, grown: int) -> Figure:
        return reading(f"slow_reader_{name}_mb", grown / max(running, 1) / 2**20)

    return [
        reading("slow_readers", running),
        megabytes("router", full.router - before.router),
        megabytes("haproxy", full.haproxy - before.haproxy),
        megabytes("kernel", full.kernel - before.kernel),
        reading("slow_readers_left", n_left),
    ]


async def measure(tick: Callable[[], None]) -> list[Figure]:
    """Measure `READERS` clients. Takes about a minute."""
    words = ["x" * CHARS] * WORDS
    async with (
        FakeOpenAI(lambda _: Script(words)).running() as upstream,
        _podium(upstream) as (client, server),
    ):
        await client.post(CHAT, chat("long"))  # warm-up
        before = _memory(server)
        async with _readers(server.url, tick):
            running, full = await _until_it_stops(client, server)
            n_left = await client.wait_until_idle(MOST_S)
    return figures(before, full, running, n_left)


def _podium(upstream: str) -> AbstractAsyncContextManager[tuple[BenchClient, BenchServer]]:
    settings = fill_settings("slow_readers.yaml", UPSTREAM=upstream)
    return start_isolated("slow_readers", [podium("podium", "/", settings)], env=production_environment())


@asynccontextmanager
async def _readers(url: str, tick: Callable[[], None]) -> AsyncGenerator[None]:
    """Connect the clients and send their requests. The clients read nothing while the block runs."""
    sockets: list[socket.socket] = []
    try:
        for _ in range(READERS):
            sockets.append(await asyncio.to_thread(_ask, url))
            tick()
            await asyncio.sleep(GAP_S)
        yield
    finally:
        for each in sockets:
            each.close()


def _ask(url: str) -> socket.socket:
    place = urlsplit(url)
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
    asking.connect((place.hostname, place.port))
    body = orjson.dumps(chat("long", stream=True))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: {place.netloc}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    asking.sendall(head.encode() + body)
    return asking


async def _until_it_stops(client: BenchClient, server: BenchServer) -> tuple[int, MemoryUse]:
    """Wait until memory is stable. Return the number of running runs and the peak memory."""
    most, still = _memory(server), 0
    for _ in range(MOST_S):
        await asyncio.sleep(1)
        now = _memory(server)
        still = 0 if max(b - a for a, b in zip(most, now, strict=True)) > 2**20 else still + 1
        most = MemoryUse(*map(max, most, now))
        if still == STILL_S:
            return (await client.get("/readyz"))["running"], most
    raise RigError(f"The memory was still growing after {MOST_S} s: {most}.")


def _memory(server: BenchServer) -> MemoryUse:
    haproxy = sum(_resident(process) for process in listening_at(server.url))
    return MemoryUse(_resident(server.router()), haproxy, _kernel_bytes())


def _resident(process: psutil.Process) -> int:
    return int(process.memory_info().rss)


def _kernel_bytes() -> int:
    """Return the memory of all TCP sockets: the pages after `mem` in sockstat's line `TCP: inuse 5 ... mem
    3`.
    """
    for line in Path("/proc/net/sockstat").read_text().splitlines():
        if line.startswith("TCP:"):
            return int(line.split()[-1]) * getpagesize()
    return 0
