"""The Ray Serves under test: the default one behind Serve's proxy, and one that is served as in production."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any, Protocol, Self, TypeVar

import psutil
import yaml

from cluster.local.environment import fast_environment
from cluster.local.processes import HAPROXY_PORTS, HOST, ROOT, ServeError, command_of, free_port, processes_of
from cluster.local.server import APP
from cluster.local.server import Server as Serve

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
        config, port = serve_config(name, applications)
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
        """See `cluster.local.server.Server.stop`."""
        self._serve.stop()

    def router(self) -> psutil.Process:
        """The process of the router replica on the route "/".

        Raises:
            BenchError: there is not exactly one.
        """
        found = replica_processes(self._serve, "router", "podium")
        if len(found) != 1:
            raise BenchError(f"found {len(found)} router replicas where there must be one")
        return found[0]


def replica_processes(serve: Serve, deployment: str, application: str = "default") -> list[psutil.Process]:
    """The replicas of a deployment; Serve calls an application that has no name `default`."""
    name = f"ray::ServeReplica:{application}:{deployment}"
    return [process for process in processes_of(serve.tag) if command_of(process).startswith(name)]


def serve_config(name: str, applications: Sequence[Json]) -> tuple[Path, int]:
    """A Serve config of `applications` on a free port, as build/bench/NAME.serve.yaml, and the port."""
    BUILD.mkdir(parents=True, exist_ok=True)
    port, path = free_port(), BUILD / f"{name}.serve.yaml"
    http = {"proxy_location": "HeadOnly", "http_options": {"host": HOST, "port": port}}
    path.write_text(yaml.safe_dump(http | {"applications": list(applications)}))
    return path, port


def application(name: str, route: str, import_path: str, **args: str) -> Json:
    """An entry of a Serve config."""
    return {"name": name, "route_prefix": route, "import_path": import_path, "args": args}


def default(upstream: str) -> Server:
    """Behind Serve's own proxy: the router, the router over `upstream`, a base address that speaks OpenAI's wire, a bare ingress."""
    return Server("server", [
        _router("podium", "/", HERE / "settings.yaml"),
        _router("schedulers", "/schedulers", HERE / "schedulers.yaml"),
        _router("upstream", "/upstream", _filled("upstream.yaml", upstream)),
        application("bare", "/bare", "loadtest.bench.bare:build"),
    ])  # fmt: skip


def production() -> dict[str, str]:
    """The environment of Serve as a cluster runs it; HAProxy's own ports are free ones, since the usual may be another server's."""
    return fast_environment() | {name: str(free_port()) for name in HAPROXY_PORTS}


def fast(upstream: str) -> Server:
    """Behind HAProxy, as in production: the router over `upstream`, and a bare ingress."""
    applications = [
        _router("podium", "/", _filled("fast.yaml", upstream)),
        application("bare", "/bare", "loadtest.bench.bare:build"),
    ]
    return Server("fast", applications, production())


class Stoppable(Protocol):
    """A server as a context manager."""

    def __enter__(self) -> object: ...
    def stop(self) -> object: ...


Started = TypeVar("Started", bound=Stoppable)


@asynccontextmanager
async def entered(server: Started) -> AsyncIterator[Started]:
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
    return application(name, route, APP, settings=str(settings))


def _ready(application: Json) -> str:
    """The path that answers 200 once the application is up."""
    return application["route_prefix"].rstrip("/") + (
        "/readyz" if application["import_path"] == APP else "/100"
    )
