"""LiteLLM's proxy with one worker process.

`litellm.lock` lists its packages explicitly. Its `proxy` extra requires packages that the proxy does not need
and that a mirror may lack (granian). This module imports nothing from LiteLLM.
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import yaml

from loadtest.bench.peer_environment import peer_environment
from loadtest.rig import HOST
from loadtest.rig.processes import BUILD, free_port, subprocess_server

PEER = peer_environment("LiteLLM", "litellm", "half a gigabyte")
MODEL = "m"
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it fetches prices from GitHub at start
    "LITELLM_LOG": "ERROR",
    "DO_NOT_TRACK": "1",
}


@asynccontextmanager
async def serve(upstream: str) -> AsyncGenerator[str]:
    """Run a LiteLLM proxy in front of `upstream`, and yield the proxy's address.

    The proxy has one worker process and serves the upstream as the model `m`.

    Args:
        upstream: the base URL of the upstream, including `/v1`.
    """
    config, port = BUILD / "litellm.yaml", free_port()
    parameters = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
    served = [{"model_name": MODEL, "litellm_params": parameters}]
    config.write_text(yaml.safe_dump({"model_list": served, "litellm_settings": {"telemetry": False}}))
    where = ["--config", str(config), "--host", HOST, "--port", str(port)]
    command = [str(PEER.venv / "bin" / "litellm"), *where, "--num_workers", "1", "--telemetry", "False"]
    alive = "/health/liveliness"
    async with subprocess_server("litellm", command, port, path=alive, env=ENVIRONMENT, within_s=120) as url:
        yield url
