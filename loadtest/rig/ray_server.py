"""Start and stop Ray Serve on this machine for a measurement."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from cluster.local.environment import fast_environment
from cluster.local.processes import HAPROXY_PORTS, ServeError, command_of, free_port, listeners, processes_of
from cluster.local.server import APP
from cluster.local.server import Server as LocalServer
from loadtest.rig import HOST, Json, RigError
from loadtest.rig.client import BenchClient, open_session
from loadtest.rig.processes import BUILD

HERE = Path(__file__).resolve().parents[1] / "bench"


class BenchServer(LocalServer):
    """Ray Serve on a free port, as a context manager. Asynchronous code uses `running`.

    Args:
        served: a settings file, or the applications of a Serve config.
        ready: the paths that answer with 200 once the server is up. By default, there is one per application.
        dashboard: whether its config can be deployed again while it runs.
    """

    def __init__(
        self,
        name: str,
        served: Path | Sequence[Json],
        *,
        ready: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        dashboard: bool = False,
    ) -> None:
        BUILD.mkdir(parents=True, exist_ok=True)
        options: dict[str, Any] = {"env": env, "log": BUILD / f"{name}.log"}
        options["dashboard_port"] = 0 if dashboard else None
        if isinstance(served, Path):
            super().__init__(settings=served, port=0, ready=ready or ("/readyz",), **options)
        else:
            config, port = write_serve_config(name, served)
            super().__init__(config=config, port=port, ready=ready or [*map(_ready_path, served)], **options)

    def replicas(self, deployment: str, application: str = "default") -> list[psutil.Process]:
        """Return the replica processes of a deployment. Serve names an unnamed application `default`."""
        name = f"ray::ServeReplica:{application}:{deployment}"
        return [process for process in processes_of(self.tag) if command_of(process).startswith(name)]

    def router(self) -> psutil.Process:
        """Return the process of the only router of the application `podium`, or raise RigError."""
        processes = self.replicas("router", "podium")
        if len(processes) != 1:
            raise RigError(f"Expected one router replica, but found {len(processes)}.")
        return processes[0]

    def proxies(self) -> list[psutil.Process]:
        """Return the processes of Serve's proxies and of HAProxy."""
        return [
            process
            for process in processes_of(self.tag)
            if command_of(process).startswith("ray::ProxyActor") or process.name() == "haproxy"
        ]


@asynccontextmanager
async def running(server: BenchServer) -> AsyncGenerator[BenchServer]:
    """Run `server` in the block. A thread starts and stops it, so that an upstream here can answer."""
    try:
        await asyncio.to_thread(server.__enter__)
        yield server
    except ServeError as error:
        raise RigError(str(error)) from error
    finally:
        await asyncio.to_thread(server.stop)


@asynccontextmanager
async def start_isolated(
    name: str,
    served: Path | Sequence[Json],
    *,
    ready: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    dashboard: bool = False,
) -> AsyncGenerator[tuple[BenchClient, BenchServer]]:
    """Run a separate `BenchServer` in the block, and yield a client and the server."""
    server = BenchServer(name, served, ready=ready, env=env, dashboard=dashboard)
    async with running(server), open_session() as session:
        yield BenchClient(session, server.url), server


def listening_at(url: str) -> list[psutil.Process]:
    port = urlsplit(url).port
    assert port is not None, "each server has its own port"
    return [process for each in listeners(port) for process in (each, *each.children(recursive=True))]


def fill_settings(template: str, **values: object) -> Path:
    """Fill the `${...}` of the settings file `template`, write it to build/bench, and return its path."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / template
    path.write_text(Template((HERE / template).read_text()).substitute(values))
    return path


def write_serve_config(name: str, applications: Sequence[Json]) -> tuple[Path, int]:
    """Write a Serve config for a free port to build/bench/NAME.serve.yaml. Return the path and the port."""
    port, path = free_port(), BUILD / f"{name}.serve.yaml"
    http = {"proxy_location": "HeadOnly", "http_options": {"host": HOST, "port": port}}
    path.write_text(yaml.safe_dump(http | {"applications": list(applications)}))
    return path, port


def application(name: str, route: str, import_path: str, **args: str) -> Json:
    """Return an entry of a Serve config."""
    return {"name": name, "route_prefix": route, "import_path": import_path, "args": args}


def podium(name: str, route: str, settings: Path) -> Json:
    """Return a Podium application as an entry of a Serve config."""
    return application(name, route, APP, settings=str(settings))


def _ready_path(entry: Json) -> str:
    path = "/readyz" if entry["import_path"] == APP else "/100"
    return entry["route_prefix"].rstrip("/") + path


BASELINE = application("bare", "/bare", "loadtest.rig.baseline:build")


def default_server(upstream: str) -> BenchServer:
    """Return a server behind Serve's own proxy: a router over `upstream`, and the baseline."""
    applications = [
        podium("podium", "/", HERE / "settings.yaml"),
        podium("schedulers", "/schedulers", HERE / "schedulers.yaml"),
        podium("upstream", "/upstream", fill_settings("upstream.yaml", UPSTREAM=upstream)),
        BASELINE,
    ]
    return BenchServer("server", applications)


def production_server(upstream: str) -> BenchServer:
    """Return a server behind HAProxy, as in production: a router over `upstream`, and the baseline."""
    settings = fill_settings("fast.yaml", UPSTREAM=upstream)
    return BenchServer("fast", [podium("podium", "/", settings), BASELINE], env=production_environment())


def production_environment() -> dict[str, str]:
    """Return Serve's environment in a cluster. HAProxy gets free ports, as its usual ones may be taken."""
    return fast_environment() | {name: str(free_port()) for name in HAPROXY_PORTS}
