"""smg, a gateway in Rust, as one process with its own defaults. This module imports nothing from smg.

smg passes requests on to workers. Here it keeps no history (`--history-backend none`), needs no key, writes
no record and has no prices. It uses as many threads as the machine has cores.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from loadtest.bench.peer_environment import peer_environment
from loadtest.rig import HOST
from loadtest.rig.processes import free_port, subprocess_server

PEER = peer_environment("smg", "smg", "100 MB")
MODEL = "m"


@asynccontextmanager
async def serve(upstream: str) -> AsyncGenerator[str]:
    """Run smg in front of `upstream`, and yield smg's address.

    smg runs as one process and serves the upstream as the model `m`.

    Args:
        upstream: the address of the upstream, without `/v1`.
    """
    port = free_port()
    where = ["--host", HOST, "--port", str(port), "--worker-urls", upstream]
    # The echo upstream lists no models. smg calls the model of such a worker `unknown`.
    alias = ["--model-alias", f"{MODEL}=unknown"]
    quiet = ["--history-backend", "none", "--log-level", "warn"]
    metrics = ["--prometheus-host", HOST, "--prometheus-port", str(free_port())]
    command = [str(PEER.venv / "bin" / "smg"), "launch", *where, *alias, *quiet, *metrics]
    async with subprocess_server("smg", command, port, path="/readiness", within_s=60) as url:
        yield url
