"""Processes of a measurement: servers in processes of their own, CPU time, memory, and missing programs."""

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import psutil

from cluster.local.processes import free_port
from cluster.local.uv import UV, environment
from loadtest.rig import HOST, ROOT, RigError

BUILD = ROOT / "build" / "bench"
STOP_WITHIN_S = 15.0


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """Return the CPU seconds that the processes have used so far, in all threads, as user and system time."""
    times = [process.cpu_times() for process in processes]
    return sum(each.user + each.system for each in times)


def memory_bytes(processes: Iterable[psutil.Process]) -> int:
    """Return the resident memory of the processes without shared memory, which is Ray's object store.

    The object store has a fixed size (256 MB in `cluster/local/child.py`). It never returns a page that was used
    once, and each process that maps the page would count it again.
    """
    n_kib = 0
    for process in processes:
        with contextlib.suppress(OSError):  # the process has ended
            status = Path(f"/proc/{process.pid}/status").read_text()
            n_kib += sum(int(n) for n in re.findall(r"^Rss(?:Anon|File):\s+(\d+) kB", status, re.MULTILINE))
    return 1024 * n_kib


def install(package: str) -> None:
    """Install a Debian package if this account may do so."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        return
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "-y", package]):
        subprocess.run(["apt-get", *command], env=environment, capture_output=True, check=False)


def make_environment(venv: Path, *requirements: str) -> None:
    """Create a virtual environment with `uv pip install` of `requirements`. It is made again if they or their
    files change.
    """
    files = [Path(each).read_text() for each in requirements if Path(each).is_file()]
    stamp, content = venv / "podium-stamp", "\n".join((sys.version, str(venv), *requirements, *files))
    if stamp.exists() and stamp.read_text() == content:
        return
    sys.stderr.write(f"Creating the environment {venv} (only once) ...\n")
    shutil.rmtree(venv, ignore_errors=True)
    python = str(venv / "bin" / "python")
    for command in (
        ["venv", "--python", sys.executable, str(venv)],
        ["pip", "install", "--python", python, *requirements],
    ):
        ended = subprocess.run(
            [str(UV), *command], env=environment(), capture_output=True, text=True, check=False
        )
        if ended.returncode:
            raise RigError(
                f"The environment {venv} could not be created:\n{ended.stderr.strip()[-2000:]}\n"
                "Check that the package index can be reached (see `pip config list`) and that 1 GB of disk is free."
            )
    stamp.write_text(content)


async def stop(process: asyncio.subprocess.Process) -> None:
    """Terminate a process. Kill it if it does not end within `STOP_WITHIN_S`."""
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        async with asyncio.timeout(STOP_WITHIN_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()


@asynccontextmanager
async def subprocess_server(
    name: str,
    command: Sequence[str],
    port: int,
    *,
    path: str = "/",
    env: Mapping[str, str] | None = None,
    within_s: float = 30.0,
) -> AsyncGenerator[str]:
    """Run a server, and yield its address once `path` answers with 200. Its log is build/bench/NAME.log."""
    BUILD.mkdir(parents=True, exist_ok=True)
    log, url = BUILD / f"{name}.log", f"http://{HOST}:{port}"
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=output, stderr=output
        )
    try:
        await _wait_until_ready(name, process, url + path, log, within_s)
        yield url
    finally:
        await stop(process)


@asynccontextmanager
async def echo_upstream() -> AsyncGenerator[str]:
    """Run `loadtest.rig.echo_upstream` while the block runs, and yield its address."""
    port = free_port()
    command = [sys.executable, "-m", "loadtest.rig.echo_upstream", str(port)]
    async with subprocess_server("echo-upstream", command, port) as url:
        yield url


async def _wait_until_ready(
    name: str, process: asyncio.subprocess.Process, url: str, log: Path, within_s: float
) -> None:
    began_s = time.monotonic()
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
        while True:
            with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                async with session.get(url) as response:
                    if response.status == 200:
                        return
            if process.returncode is not None:
                raise RigError(f"{name} exited before it was ready.{_log_tail(log)}")
            if time.monotonic() - began_s > within_s:
                raise RigError(f"{name} was not ready after {within_s:.0f} s.{_log_tail(log)}")
            await asyncio.sleep(0.1)


def _log_tail(log: Path) -> str:
    tail = "\n".join(log.read_text(errors="replace").splitlines()[-8:])
    return f" Last lines of its log:\n{tail}\nFull log: {log}"
