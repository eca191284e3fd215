"""A Serve for one part of the bench alone: what is deployed, or how, is what that part measures."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from string import Template

import aiohttp

from bench.client import Client, Json
from bench.server import BUILD, HERE, BenchError, Serve, ServeError, entered, serve_config


@asynccontextmanager
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    """As many connections as are asked for, none of them given up on for its length."""
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=120)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as made:
        yield made


@asynccontextmanager
async def alone(
    name: str, served: Path | Sequence[Json], *, ready: Sequence[str] = ("/readyz",), env: Mapping[str, str] | None = None,
    dashboard: bool = False,
) -> AsyncIterator[tuple[Client, Serve]]:  # fmt: skip
    """A server up, a client of it, and both gone afterwards.

    Args:
        name: of its log in build/bench.
        served: a settings file, or the applications of a Serve config.
        ready: the paths that say when it is up.
        env: more environment for all of its processes.
        dashboard: whether its config can be deployed again while it runs.

    Raises:
        BenchError: it did not start.
    """
    log, dashboard_port = BUILD / f"{name}.log", 0 if dashboard else None
    if isinstance(served, Path):
        server = Serve(settings=served, port=0, ready=ready, env=env, log=log, dashboard_port=dashboard_port)
    else:
        config, port = serve_config(name, served)
        server = Serve(config=config, port=port, ready=ready, env=env, log=log, dashboard_port=dashboard_port)
    try:
        async with entered(server), session() as made:
            yield Client(made, server.url), server
    except ServeError as error:
        raise BenchError(str(error)) from error


def settings_file(template: str, name: str, **values: object) -> Path:
    """The settings file `template` here with its `${...}` filled in, as build/bench/NAME."""
    BUILD.mkdir(parents=True, exist_ok=True)
    path = BUILD / name
    path.write_text(Template((HERE / template).read_text()).substitute(values))
    return path
