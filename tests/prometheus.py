"""Prometheus and `promtool` from the distribution's package."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2 as httpx

from cluster.local.processes import free_port

INSTALL = ["apt-get", "install", "-y", "--no-install-recommends", "prometheus"]


def program(name: str) -> str:
    """Return the path of `prometheus` or `promtool`. If it is missing, install it when running as root."""
    if shutil.which(name) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "update"], check=False, capture_output=True)
        subprocess.run(INSTALL, check=False, capture_output=True)
    path = shutil.which(name)
    assert path, f"{name} is not installed: run `sudo {' '.join(INSTALL)}`"
    return path


def promtool(*arguments: str | Path) -> str:
    """Return the output of promtool, and fail if it finds a fault."""
    done = subprocess.run([program("promtool"), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def wait_until_none(missing: Callable[[], Any], timeout_s: float = 60) -> None:
    """Wait until nothing is `missing`. Otherwise fail with what is."""
    deadline = time.monotonic() + timeout_s
    while remaining := missing():
        assert time.monotonic() < deadline, f"missing after {timeout_s} s: {remaining}"
        time.sleep(0.2)


@dataclass(frozen=True)
class Prometheus:
    url: str

    def get(self, path: str, **params: Any) -> Any:
        answer = httpx.get(f"{self.url}/api/v1/{path}", params=params, timeout=10)
        assert answer.status_code == 200, answer.text
        return answer.json()["data"]

    def query(self, expression: str) -> list[Any]:
        return self.get("query", query=expression)["result"]


@contextmanager
def running(config: Any, folder: Path) -> Iterator[Prometheus]:
    """Run Prometheus with `config` on a free loopback port, with its data and output in `folder`."""
    file, port = folder / "prometheus.json", free_port()  # JSON is YAML
    file.write_text(json.dumps(config))
    flags = [
        f"--config.file={file}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([program("prometheus"), *flags], stdout=log, stderr=subprocess.STDOUT)
    try:
        server = Prometheus(f"http://127.0.0.1:{port}")
        wait_until_none(lambda: not _is_ready(server) and (folder / "prometheus.log").read_text()[-2000:])
        yield server
    finally:
        process.terminate()
        process.wait(20)


def _is_ready(server: Prometheus) -> bool:
    try:
        return httpx.get(f"{server.url}/-/ready", timeout=1).status_code == 200
    except httpx.TransportError:
        return False
