"""The Ray Serve under test: the router over scripted workers, the router over the bench's own upstream, and a bare ingress."""

from pathlib import Path
from string import Template
from typing import Any, Self

import psutil
import yaml

from cluster.processes import HOST, ROOT, ServeError, free_port, named, tagged
from cluster.serve import APP
from cluster.serve import Server as Serve

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
        BUILD.mkdir(parents=True, exist_ok=True)
        port = free_port()
        config = BUILD / "serve.yaml"
        config.write_text(yaml.safe_dump(_config(port, upstream)))
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
        name = "ray::ServeReplica:podium:router"
        found = [p for p in tagged(self._serve.tag) if named(p).startswith(name)]
        if len(found) != 1:
            raise BenchError(f"found {len(found)} router replicas where there must be one")
        return found[0]


def _config(port: int, upstream: str) -> dict[str, Any]:
    settings = BUILD / "upstream.yaml"
    settings.write_text(Template((HERE / "upstream.yaml").read_text()).substitute(UPSTREAM=upstream))

    def application(name: str, route: str, import_path: str, args: dict[str, str]) -> dict[str, Any]:
        return {"name": name, "route_prefix": route, "import_path": import_path, "args": args}

    return {
        "proxy_location": "HeadOnly",
        "http_options": {"host": HOST, "port": port},
        "applications": [
            application("podium", "/", APP, {"settings": str(HERE / "settings.yaml")}),
            application("schedulers", "/schedulers", APP, {"settings": str(HERE / "schedulers.yaml")}),
            application("upstream", "/upstream", APP, {"settings": str(settings)}),
            application("bare", "/bare", "loadtest.bench.bare:build", {}),
        ],
    }
