"""Servers under attack, with keys of two teams. There is one server per path, which is a way to the router.

This module knows how to start each server and which processes it has.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import psutil

from loadtest.rig import Json, RigError
from loadtest.rig.client import REQUEST_ERRORS, chat
from loadtest.rig.databases import sqlite_address
from loadtest.rig.processes import BUILD, free_port
from loadtest.rig.ray_server import BenchServer, production_environment, start_isolated
from loadtest.rig.routers import make_keys
from loadtest.siege.watch import TOKENS_PER_S

SETTINGS = Path(__file__).with_name("siege.yaml")
PATHS = ("haproxy", "serve", "replica")
"""Paths to the server: through HAProxy, through Serve's own proxy, and past HAProxy to the router's port."""
WARM_UP, AT_ONCE = 600, 20
"""Warm-up requests and their concurrency. They open everything that opens on first use."""
KEYS: dict[str, tuple[str, tuple[str, ...], Json]] = {
    "ordinary": ("ordinary", ("run", "read"), {}),
    "attacker": ("attackers", ("run", "read"), {}),
    "reader": ("attackers", ("read",), {}),
    "redacting": ("attackers", ("run", "read"), {"redact_personal_data": True}),
}
"""Key name to its team, scopes and policy."""


@dataclass(frozen=True)
class AttackTarget:
    """Running server.

    Args:
        find_processes: a function that looks up and returns the processes that handle the bytes of clients.
        keys: the secrets by the names in `KEYS`. It is empty if the server needs no key.
        store: the server's SQLite file, or "".
        upstream_port: the port at which the server expects its provider, or 0.
    """

    url: str
    find_processes: Callable[[], list[psutil.Process]] = list
    keys: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    store: str = ""
    upstream_port: int = 0


def text(duration_s: float) -> str:
    """Return the answer of the worker `talker`. Its words differ, and take about `duration_s` to stream."""
    return " ".join(f"word-{number}" for number in range(int(duration_s * TOKENS_PER_S)))


def settings_text(duration_s: float, upstream_port: int = 1) -> str:
    """Return the settings as YAML. The default `upstream_port` is closed, so its calls fail."""
    upstream = f"http://127.0.0.1:{upstream_port}/v1"
    return SETTINGS.read_text().replace("${TOKENS}", text(duration_s)).replace("${UPSTREAM}", upstream)


@asynccontextmanager
async def serve(path: str, duration_s: float) -> AsyncGenerator[AttackTarget]:
    """Run a warm server with keys on the given path while the block runs."""
    BUILD.mkdir(parents=True, exist_ok=True)
    upstream_port = free_port()
    settings = settings_text(duration_s, upstream_port)
    with TemporaryDirectory() as folder:
        store = Path(folder) / "podium.db"
        keys = await make_keys(sqlite_address(store), KEYS)
        async with _serve_cluster(path, settings, store) as (url, find_processes):
            await _warm_up(url, keys["ordinary"])
            yield AttackTarget(url, find_processes, keys, str(store), upstream_port)


@asynccontextmanager
async def _serve_cluster(
    path: str, settings: str, store: Path
) -> AsyncGenerator[tuple[str, Callable[[], list[psutil.Process]]]]:
    file = BUILD / f"siege-{path}.yaml"
    file.write_text(settings)
    env = {} if path == "serve" else production_environment()
    env |= {"PODIUM_STORE_URL": f"sqlite:///{store}"}
    async with start_isolated(f"siege-{path}", file, env=env) as (client, server):
        url = await _replica_url(server) if path == "replica" else client.url
        yield url, lambda: _cluster_processes(server)


async def _replica_url(server: BenchServer) -> str:
    """Return the address at which HAProxy reaches the only router."""
    (router,) = server.replicas("router")
    sockets = [each for each in router.net_connections("tcp") if each.status == psutil.CONN_LISTEN]
    async with aiohttp.ClientSession() as session:
        for socket in sockets:
            url = f"http://127.0.0.1:{socket.laddr.port}"
            with suppress(*REQUEST_ERRORS):
                async with session.get(f"{url}/healthz") as response:
                    if response.status == 200:
                        return url
    raise RigError("The router has no HTTP port of its own.")


def _cluster_processes(server: BenchServer) -> list[psutil.Process]:
    routers = server.replicas("router")
    if not routers:
        raise RigError("The server has no router.")
    return [*routers, *server.proxies()]


async def _warm_up(url: str, key: str) -> None:
    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers) as session:

        async def ask(number: int) -> None:
            body = chat("quick", stream=number % 2 == 0)
            async with session.post(f"{url}/v1/chat/completions", json=body) as response:
                await response.read()

        for first in range(0, WARM_UP, AT_ONCE):
            await asyncio.gather(*(ask(number) for number in range(first, first + AT_ONCE)))
        for path in ("openapi.json", "workflows?limit=100", "models", "files"):
            async with session.get(f"{url}/v1/{path}") as response:
                await response.read()
