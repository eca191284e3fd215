"""The Ray Serves under test: the default one behind Serve's proxy, and one that is served as in production."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any, Self

import psutil
import yaml

from cluster.processes import HAPROXY_PORTS, HOST, ROOT, ServeError, free_port, named, tagged
from cluster.serve import APP, fast_environment
from cluster.serve import Server as Serve

HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "bench"
Json = dict[str, Any]


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


class Server:
    """A Serve under test, as a context manager.

    Args:
        name: of its config and its log.
        applications: what it serves, as in a Serve config.
        env: more environment for every process of it.
    """

    def __init__(self, name: str, applications: list[Json], env: Mapping[str, str] | None = None) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        port = free_port()
        config = BUILD / f"{name}.serve.yaml"
        http = {"proxy_location": "HeadOnly", "http_options": {"host": HOST, "port": port}}
        config.write_text(yaml.safe_dump(http | {"applications": applications}))
        self.log = BUILD / f"{name}.log"
        ready = [_ready(application) for application in applications]
        self._serve = Serve(config=config, port=port, ready=ready, env=env, log=self.log)
        self.url = self._serve.url

    def __enter__(self) -> Self:
        try:
            self._serve.__enter__()
        except ServeError as error:
            raise BenchError(str(error)) from error
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """See `cluster.serve.Server.stop`."""
        self._serve.stop()

    def router(self) -> psutil.Process:
        """The process of the router replica on the route "/".

        Raises:
            BenchError: there is not exactly one.
        """
        name = "ray::ServeReplica:podium:router"
        found = [p for p in tagged(self._serve.tag) if named(p).startswith(name)]
        if len(found) != 1:
            raise BenchError(f"found {len(found)} router replicas where there must be one")
        return found[0]


def default(upstream: str) -> Server:
    """Behind Serve's own proxy: the router, the router over `upstream`, a base address that speaks OpenAI's wire, a bare ingress."""
    return Server("server", [
        _router("podium", "/", HERE / "settings.yaml"),
        _router("schedulers", "/schedulers", HERE / "schedulers.yaml"),
        _router("upstream", "/upstream", _filled("upstream.yaml", upstream)),
        _application("bare", "/bare", "loadtest.bench.bare:build", {}),
    ])  # fmt: skip


def fast(upstream: str) -> Server:
    """Behind HAProxy, as in production: the router over `upstream`, and a bare ingress."""
    ports = {name: str(free_port()) for name in HAPROXY_PORTS}  # the usual ones may be another server's
    applications = [
        _router("podium", "/", _filled("fast.yaml", upstream)),
        _application("bare", "/bare", "loadtest.bench.bare:build", {}),
    ]
    return Server("fast", applications, fast_environment() | ports)


@asynccontextmanager
async def entered(server: Server) -> AsyncIterator[Server]:
    """Start and stop it in a thread: meanwhile an upstream in this process can answer. Stopped, a start under way gives up."""
    try:
        await asyncio.to_thread(server.__enter__)
        yield server
    finally:
        await asyncio.to_thread(server.stop)


def _filled(name: str, upstream: str) -> Path:
    settings = BUILD / name
    BUILD.mkdir(parents=True, exist_ok=True)
    settings.write_text(Template((HERE / name).read_text()).substitute(UPSTREAM=upstream))
    return settings


def _router(name: str, route: str, settings: Path) -> Json:
    return _application(name, route, APP, {"settings": str(settings)})


def _application(name: str, route: str, import_path: str, args: dict[str, str]) -> Json:
    return {"name": name, "route_prefix": route, "import_path": import_path, "args": args}


def _ready(application: Json) -> str:
    """The path that answers 200 once the application is up."""
    return application["route_prefix"].rstrip("/") + (
        "/readyz" if application["import_path"] == APP else "/100"
    )
