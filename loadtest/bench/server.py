"""A Ray Serve of the bench's own: started, found ready, and taken down to its last process.

The child (`python -m loadtest.bench.server CONFIG`) is `serve run` on a Ray that nobody else can find: own temporary folder,
own ports, loopback only. Every process it leads to inherits `PODIUM_BENCH` and is ended by it, never by a name.
"""

import atexit
import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import uuid
from http.client import HTTPException
from pathlib import Path
from string import Template
from typing import Any, Self

import psutil
import yaml

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent
BUILD = ROOT / "build" / "bench"
HOST = "127.0.0.1"
TAG = "PODIUM_BENCH"
READY_WITHIN_S = 240.0
STOP_WITHIN_S = 45.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_AUTH_MODE": "token",
    "RAY_SERVE_DEFAULT_HTTP_HOST": HOST,
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # As serving/app.py sets them: the router traces as it does by default, and so does the proxy in front of both sides.
    "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": "serving.telemetry:span_processors",
    "RAY_SERVE_TRACING_SAMPLING_RATIO": "1.0",
    "SPT_NOENV": "1",  # Ray renames its processes; this keeps their environment, and so our tag, readable
    "PYTHONUNBUFFERED": "1",
    "no_proxy": "127.0.0.1,localhost",
    "NO_PROXY": "127.0.0.1,localhost",
}


class BenchError(Exception):
    """A measurement could not be made; the message says why."""


class Server:
    """The Serve under test, as a context manager.

    Args:
        upstream: base address of the server in the bench's process that speaks OpenAI's wire.
    """

    def __init__(self, upstream: str) -> None:
        self.port = _free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = BUILD / "server.log"
        self._tag = uuid.uuid4().hex
        self._upstream = upstream
        self._ray_folder = tempfile.mkdtemp(prefix="pb-")  # short: Ray puts sockets below it
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        BUILD.mkdir(parents=True, exist_ok=True)
        config = BUILD / "serve.yaml"
        config.write_text(yaml.safe_dump(self._config()))
        environment = {
            **os.environ,
            **ENVIRONMENT,
            TAG: self._tag,
            "PYTHONPATH": str(ROOT),
            "RAY_TMPDIR": self._ray_folder,
        }
        environment.pop("RAY_ADDRESS", None)
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "loadtest.bench.server", str(config)], cwd=ROOT, env=environment,
                stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _config(self) -> dict[str, Any]:
        settings = BUILD / "upstream.yaml"
        settings.write_text(
            Template((HERE / "upstream.yaml").read_text()).substitute(UPSTREAM=self._upstream)
        )
        router = "serving.app:build_app"
        return {
            "proxy_location": "HeadOnly",
            "http_options": {"host": HOST, "port": self.port},
            "applications": [
                {"name": "podium", "route_prefix": "/", "import_path": router,
                 "args": {"settings": str(HERE / "settings.yaml")}},
                {"name": "upstream", "route_prefix": "/upstream", "import_path": router, "args": {"settings": str(settings)}},
                {"name": "bare", "route_prefix": "/bare", "import_path": "loadtest.bench.bare:build", "args": {}},
            ],
        }  # fmt: skip

    def _wait_until_ready(self) -> None:
        waiting = [("GET", "/readyz"), ("GET", "/upstream/readyz"), ("POST", "/bare/100")]
        give_up = time.monotonic() + READY_WITHIN_S
        while waiting:
            if self._child is None or self._child.poll() is not None:
                raise BenchError(f"the server ended before it was ready; see {self.log}")
            if b"the replica will be stopped" in self.log.read_bytes():
                raise BenchError(f"a replica could not start; see {self.log}")
            if time.monotonic() > give_up:
                raise BenchError(f"the server was not ready after {READY_WITHIN_S:.0f} s; see {self.log}")
            waiting = [(method, path) for method, path in waiting if not self._answers(method, path)]
            time.sleep(0.25)

    def _answers(self, method: str, path: str) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        request = urllib.request.Request(
            f"{self.url}{path}", b"{}" if method == "POST" else None, method=method
        )
        try:
            with direct.open(request, timeout=5) as answer:
                return answer.status == 200
        except (OSError, HTTPException):
            return False

    def router(self) -> psutil.Process:
        """The process of the router replica on the route "/".

        Raises:
            BenchError: there is not exactly one.
        """
        found = [p for p in self._tagged() if _command(p).startswith("ray::ServeReplica:podium:router")]
        if len(found) != 1:
            raise BenchError(f"found {len(found)} router replicas where there must be one")
        return found[0]

    def stop(self) -> None:
        """SIGINT, wait, then end what is still there. May be called twice."""
        child, self._child = self._child, None
        if child is not None and child.poll() is None:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_WITHIN_S)
        give_up = time.monotonic() + 8
        while (rest := self._tagged()) and time.monotonic() < give_up:
            time.sleep(0.2)
        for process in rest:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(rest, timeout=5)
        shutil.rmtree(self._ray_folder, ignore_errors=True)

    def _tagged(self) -> list[psutil.Process]:
        found: list[psutil.Process] = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get(TAG) == self._tag and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found


def _command(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def _free_port() -> int:
    """A port that nobody has, and that Ray, which takes its own as the system deals them out or below 20,000, leaves alone."""
    for port in random.sample(range(20_000, 32_000), 50):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise BenchError("found no free port between 20000 and 32000")


def _end_with(parent_pid: int) -> None:
    """End this process as Ctrl-C would once its parent is gone, even by SIGKILL."""

    def look() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True, name="watch-parent").start()


def run_child(config: str) -> None:
    """`serve run CONFIG` on a Ray of its own."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job starts with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    _end_with(os.getppid())
    folder = os.environ["RAY_TMPDIR"]
    atexit.register(shutil.rmtree, folder, ignore_errors=True)  # before Ray's own, so that it runs after it
    import ray
    from ray.serve.scripts import run

    ray.init(
        "local", namespace="serve", num_cpus=2, include_dashboard=False, object_store_memory=256 * 1024 * 1024,
        _node_ip_address=HOST, _temp_dir=folder,
    )  # fmt: skip
    run.main(args=["--app-dir", str(ROOT), config], standalone_mode=False)


if __name__ == "__main__":
    run_child(sys.argv[1])
