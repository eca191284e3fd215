"""Servers under attack, with keys of two teams. There is one server per path, which is a way to the router.

This module knows how to start each server and which processes it has.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import aiohttp
import psutil
import yaml

from loadtest.rig import Json, RigError
from loadtest.rig.client import chat
from loadtest.rig.databases import sqlite_address
from loadtest.rig.processes import BUILD, free_port
from loadtest.rig.ray_server import BenchServer, production_environment, start_isolated
from loadtest.rig.routers import make_keys, running_router
from loadtest.siege.watch import TOKENS_PER_S

SETTINGS = Path(__file__).with_name("siege.yaml")
PATHS = ("haproxy", "serve", "replica")
"""Paths to the server: behind HAProxy, behind Serve's own proxy, and directly at a router."""
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
        run = _serve_router if path == "replica" else _serve_cluster
        async with run(path, settings, store) as (url, find_processes):
            await _warm_up(url, keys["ordinary"])
            yield AttackTarget(url, find_processes, keys, str(store), upstream_port)


@asynccontextmanager
async def _serve_router(
    path: str, settings: str, store: Path
) -> AsyncGenerator[tuple[str, Callable[[], list[psutil.Process]]]]:
    async with running_router(f"siege-{path}", sqlite_address(store), yaml.safe_load(settings)) as router:
        yield router.url, lambda: [psutil.Process(router.process.pid)]


@asynccontextmanager
async def _serve_cluster(
    path: str, settings: str, store: Path
) -> AsyncGenerator[tuple[str, Callable[[], list[psutil.Process]]]]:
    file = BUILD / f"siege-{path}.yaml"
    file.write_text(settings)
    env = production_environment() if path == "haproxy" else {}
    env |= {"PODIUM_STORE_URL": f"sqlite:///{store}"}
    async with start_isolated(f"siege-{path}", file, env=env) as (client, server):
        yield client.url, lambda: _cluster_processes(server)


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
