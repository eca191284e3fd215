"""The Ray Serve under test: the router over scripted workers, the router over the bench's own upstream, and a bare ingress."""

from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import Any, Self

import psutil
import yaml

from cluster.processes import HOST, ROOT, ServeError, free_port, named, tagged
from cluster.serve import APP
from cluster.serve import Server as Serve

Json = dict[str, Any]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "bench"


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


class Server:
    """The Serve under test, as a context manager.

    Args:
        upstream: base address of the server in the bench's process that speaks OpenAI's wire.
    """

    def __init__(self, upstream: str) -> None:
        config, port = serve_config("serve", _applications(upstream))
        self.log = BUILD / "server.log"
        ready = ("/readyz", "/schedulers/readyz", "/upstream/readyz", "/bare/100")
        self._serve = Serve(config=config, port=port, ready=ready, log=self.log)
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
        found = replica_processes(self._serve, "router", "podium")
        if len(found) != 1:
            raise BenchError(f"found {len(found)} router replicas where there must be one")
        return found[0]


def replica_processes(serve: Serve, deployment: str, application: str = "default") -> list[psutil.Process]:
    """The replicas of a deployment; Serve calls an application that has no name `default`."""
    name = f"ray::ServeReplica:{application}:{deployment}"
    return [process for process in tagged(serve.tag) if named(process).startswith(name)]


def serve_config(name: str, applications: Sequence[Json]) -> tuple[Path, int]:
    """A Serve config of `applications` on a free port, as build/bench/NAME.yaml, and the port."""
    BUILD.mkdir(parents=True, exist_ok=True)
    port, path = free_port(), BUILD / f"{name}.yaml"
    http = {"host": HOST, "port": port}
    config = {"proxy_location": "HeadOnly", "http_options": http, "applications": list(applications)}
    path.write_text(yaml.safe_dump(config))
    return path, port


def application(name: str, route: str, import_path: str, **args: str) -> Json:
    """An entry of a Serve config."""
    return {"name": name, "route_prefix": route, "import_path": import_path, "args": args}


def _applications(upstream: str) -> list[Json]:
    settings = BUILD / "upstream.yaml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(Template((HERE / "upstream.yaml").read_text()).substitute(UPSTREAM=upstream))
    return [
        application("podium", "/", APP, settings=str(HERE / "settings.yaml")),
        application("schedulers", "/schedulers", APP, settings=str(HERE / "schedulers.yaml")),
        application("upstream", "/upstream", APP, settings=str(settings)),
        application("bare", "/bare", "loadtest.bench.bare:build"),
    ]
