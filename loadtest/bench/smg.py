"""smg, a gateway in Rust: one process of it, with its own defaults. Nothing of it is imported here.

It passes requests on to workers. It keeps nothing here (`--history-backend none`), asks nobody for a key, writes no
record and knows no prices; its threads are as many as the machine has cores.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loadtest.bench.peer_environment import peer_environment
from loadtest.rig import HOST
from loadtest.rig.ray_server import free_port
from loadtest.rig.subprocess_server import subprocess_server

PEER = peer_environment("smg", "smg", "100 MB")
MODEL = "m"


@asynccontextmanager
async def serve(upstream: str) -> AsyncGenerator[str]:
    """The address of one process that serves `upstream`, an address without `/v1`, as the model `m`."""
    port = free_port()
    where = ["--host", HOST, "--port", str(port), "--worker-urls", upstream]
    # The echo upstream names no models, and smg calls the model of such a worker `unknown`.
    named = ["--model-alias", f"{MODEL}=unknown"]
    quiet = ["--history-backend", "none", "--log-level", "warn"]
    metrics = ["--prometheus-host", HOST, "--prometheus-port", str(free_port())]
    command = [str(PEER.venv / "bin" / "smg"), "launch", *where, *named, *quiet, *metrics]
    async with subprocess_server("smg", command, port, path="/readiness", within_s=60) as url:
        yield url
