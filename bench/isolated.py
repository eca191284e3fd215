"""A Serve for one part of the bench only: parts that measure what is deployed, or how."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp

from bench.client import BenchClient
from bench.server import BenchServer, Json, running


@asynccontextmanager
async def open_session() -> AsyncGenerator[aiohttp.ClientSession]:
    """A session without a limit on connections or on the length of a request."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as session:
        yield session


@asynccontextmanager
async def start_isolated(
    name: str,
    served: Path | Sequence[Json],
    *,
    ready: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    dashboard: bool = False,
) -> AsyncGenerator[tuple[BenchClient, BenchServer]]:
    """A client and its server, which runs inside the block; the arguments are those of `BenchServer`.

    Raises:
        BenchError: it did not start.
    """
    server = BenchServer(name, served, ready=ready, env=env, dashboard=dashboard)
    async with running(server), open_session() as session:
        yield BenchClient(session, server.url), server
