"""LiteLLM's proxy: an environment of its own under build/litellm, and one worker process of it.

The environment is `litellm.lock`, installed without dependency resolution: the `proxy` extra requires
packages that a mirror may lack (granian) and that the proxy starts without. A stamp skips the work the second
time. Nothing of it is imported here.
"""

import contextlib
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import yaml

from bench.server import BUILD, HOST, ROOT, BenchError, free_port
from bench.subprocess_server import subprocess_server

LOCK = Path(__file__).with_name("litellm.lock")
VENV = ROOT / "build" / "litellm"
REPORT_EVERY_S = 10.0
MODEL = "m"
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks GitHub for prices when it starts
    "LITELLM_LOG": "ERROR",
    "DO_NOT_TRACK": "1",
}


def is_built(lock: Path = LOCK, venv: Path = VENV) -> bool:
    """Whether the environment is complete and made from this lock by this Python."""
    stamp = venv / "podium-stamp"
    return stamp.exists() and stamp.read_text() == _stamp(lock, venv)


def _stamp(lock: Path, venv: Path) -> str:
    return f"{sys.version_info[:2]} {venv}\n{lock.read_text()}"


def build(say: Callable[[str], None], lock: Path = LOCK, venv: Path = VENV) -> None:
    """Make the environment, unless it exists.

    Args:
        say: gets a line of progress now and then.
        lock: what is installed.
        venv: where.

    Raises:
        BenchError: pip failed; with the end of its output.
    """
    if is_built(lock, venv):
        return
    say(f"Building LiteLLM's environment in {venv}: half a gigabyte, once ...")
    shutil.rmtree(venv, ignore_errors=True)
    venv.parent.mkdir(parents=True, exist_ok=True)
    log = venv.with_name("litellm-pip.log")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
    with log.open("wb") as output:
        _run([sys.executable, "-m", "venv", "--without-pip", str(venv)], output, say)
        _run([*pip, "install", "--no-input", "--no-deps", "-r", str(lock)], output, say)
    (venv / "podium-stamp").write_text(_stamp(lock, venv))


def _run(command: list[str], output: IO[bytes], say: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(REPORT_EVERY_S)
                break
            say(f"  still installing, {time.monotonic() - began_s:.0f} s")
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        tail = "\n".join(Path(output.name).read_text(errors="replace").splitlines()[-6:])
        raise BenchError(
            f"LiteLLM's environment could not be built:\n{tail}\nAll of it: {output.name}\n"
            "It needs the package index (`pip config list` shows which) and 1 GB of disk. Or omit it: --only"
        )


@asynccontextmanager
async def serve(upstream: str) -> AsyncGenerator[str]:
    """The address of one worker process that serves `upstream`, a base URL with `/v1`, as the model `m`."""
    config, port = BUILD / "litellm.yaml", free_port()
    parameters = {"model": f"openai/{MODEL}", "api_base": upstream, "api_key": "none"}
    served = [{"model_name": MODEL, "litellm_params": parameters}]
    config.write_text(yaml.safe_dump({"model_list": served, "litellm_settings": {"telemetry": False}}))
    where = ["--config", str(config), "--host", HOST, "--port", str(port)]
    command = [str(VENV / "bin" / "litellm"), *where, "--num_workers", "1", "--telemetry", "False"]
    alive = "/health/liveliness"
    async with subprocess_server("litellm", command, port, path=alive, env=ENVIRONMENT, within_s=120) as url:
        yield url
