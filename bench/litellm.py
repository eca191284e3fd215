"""LiteLLM's proxy: an environment of its own under build/litellm, and one worker process of it.

The environment is `litellm.lock`, installed without dependency resolution: the `proxy` extra requires
packages that a mirror may lack (granian) and that the proxy starts without. A stamp skips the work the second
time. Nothing of it is imported here.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import yaml

from bench.server import BUILD, HOST, ROOT, BenchError, free_port
from bench.subprocess_server import subprocess_server

LOCK = Path(__file__).with_name("litellm.lock")
VENV = ROOT / "build" / "litellm"
REPORT_EVERY_S = 10.0
FOUND = re.compile(r"^(?:Collecting|Processing) ", re.MULTILINE)
"""What pip prints for each package that it has found, before it installs any."""
MODEL = "m"
ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it asks GitHub for prices when it starts
    "LITELLM_LOG": "ERROR",
    "DO_NOT_TRACK": "1",
}


def stamp(lock: Path = LOCK, venv: Path = VENV) -> str:
    """Packages, place and Python version of the environment, as one hash."""
    return hashlib.sha256(f"{sys.version_info[:2]} {venv}".encode() + lock.read_bytes()).hexdigest()


def is_built(lock: Path = LOCK, venv: Path = VENV) -> bool:
    """Whether the environment is complete and made from this lock."""
    written = venv / "podium-stamp"
    return written.exists() and written.read_text() == stamp(lock, venv)


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
    with log.open("wb") as output:
        _run([sys.executable, "-m", "venv", "--without-pip", str(venv)], output, log, say)
        pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python")]
        _run([*pip, "install", "--no-input", "--no-deps", "-r", str(lock)], output, log, say)
    (venv / "podium-stamp").write_text(stamp(lock, venv))


def _run(command: list[str], output: IO[bytes], log: Path, say: Callable[[str], None]) -> None:
    began_s = time.monotonic()
    unbuffered = {**os.environ, "PYTHONUNBUFFERED": "1"}  # pip buffers its output to a file
    process = subprocess.Popen(command, env=unbuffered, stdout=output, stderr=subprocess.STDOUT)
    try:
        while process.poll() is None:
            try:
                process.wait(REPORT_EVERY_S)
            except subprocess.TimeoutExpired:
                found = len(FOUND.findall(log.read_text(errors="replace")))
                say(f"  {found} packages found, {time.monotonic() - began_s:.0f} s")
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-6:])
        raise BenchError(
            f"LiteLLM's environment could not be built:\n{tail}\nAll of it: {log}\n"
            "It needs the package index (`pip config list` shows which) and 1 GB of disk. Or omit it: --only"
        )


@asynccontextmanager
async def serve(upstream: str) -> AsyncIterator[str]:
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
