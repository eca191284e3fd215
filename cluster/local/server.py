"""Start a Podium server on this machine, wait until it is ready, and end it with all of its processes.

    with Server(port=0) as server:            # tests and the demo: a free port, ready when entered
        httpx2.get(f"{server.url}/v1/models")

The server's child process (`child.py`) runs `serve run` on its own Ray instance. It listens on loopback only,
unless another address is set and an API key exists. All processes that it starts (Ray, replicas, vLLM's
engine cores, HAProxy) are found by the server's tag (`processes.py`).

This module starts and ends servers. It does not depend on plans, workers or settings.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from http.client import HTTPException
from pathlib import Path
from typing import Self

from cluster.local.environment import serve_environment
from cluster.local.folder import ServerFolder, make_folder, record_shared_memory, sweep_folders
from cluster.local.processes import (
    CHILD,
    HOST,
    ROOT,
    TAG,
    ServeError,
    check_nothing_in_the_way,
    claim,
    describe,
    end,
    free_port,
    haproxy_ports,
    listeners,
    processes_of,
    tag_of,
)
from cluster.local.progress import Progress

SETTINGS = "cluster/local.yaml"
APP = "serving.app:build_app"

READY_WITHIN_S = 600.0  # a compiled vLLM on a slow, shared machine takes minutes
STOP_WITHIN_S = 45.0
LAST_PROCESSES_S = 8.0


STORE = "PODIUM_STORE_URL"
"""Environment variable with the URL of the store, unless the settings name another variable."""
LOG_BYTES = 67_108_864
"""Bytes at which a server's log is rotated, as `RAY_ROTATION_MAX_BYTES` for Ray's files (`environment.py`)."""
EVERYWHERE = {"0.0.0.0": HOST, "::": "[::1]"}  # noqa: S104
"""Address at which this machine reaches a server that listens on all interfaces, by the listening address."""


def _reachable(host: str) -> str:
    return EVERYWHERE.get(host, f"[{host}]" if ":" in host else host)


def keep_log_short(log: Path, child: subprocess.Popen[bytes]) -> None:
    while child.poll() is None:
        rotate(log)
        time.sleep(1)


def rotate(log: Path, max_bytes: int = LOG_BYTES) -> None:
    """Move a large log's content to `NAME.1`. The file stays for the processes that append to it."""
    with contextlib.suppress(FileNotFoundError):
        if log.stat().st_size > max_bytes:
            older = log.with_name(f"{log.name}.1")
            older.unlink(missing_ok=True)
            with (
                log.open("rb") as source,
                os.fdopen(os.open(older, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy,
            ):
                shutil.copyfileobj(source, copy)
            os.truncate(log, 0)


class Server:
    """Podium server on this machine, as a context manager.

    The block begins when the paths in `ready` answer 200. At its end, all processes of the server are ended.

    Args:
        config: Serve config file to run instead of `settings`. It sets its own port.
        host: IP address to listen on. An address that other machines can reach is rejected until an API key
            exists.
        port: HTTP port, or 0 to choose a free one.
        model: model of a hub, or a folder, that replaces the model of the local workers.
        conductor: name of the worker that replaces the conductor in the settings.
        dashboard_port: port of Ray's dashboard, which `serve deploy` and `serve status` need. 0 chooses a
            free port, and None starts no dashboard.
        metrics_port: port of this node's metrics for Prometheus, or 0 to choose a free one.
        ready: paths that must answer 200 before the server counts as ready.
        own_store: whether the server gets an empty store, which is removed at the end, instead of this
            account's store.
        log: file for all output, readable by this account only (default: `build/serve-<port>.log`). It is
            rotated to `.log.1` at 64 MiB. If the server fails, Ray's own logs are kept in a folder next to
            it, with `.ray` instead of `.log`.
        cpus: number of logical CPUs that Ray may assign. A deployment uses a fraction of one.
        ready_within_s: seconds within which the server must be ready.
        progress: whether to show progress on standard output while the server starts.
    """

    def __init__(
        self,
        *,
        settings: str | Path = SETTINGS,
        config: Path | None = None,
        host: str = HOST,
        port: int = 8000,
        model: str | None = None,
        conductor: str | None = None,
        metrics_port: int = 0,
        dashboard_port: int | None = None,
        ready: Sequence[str] = ("/readyz",),
        env: Mapping[str, str] | None = None,
        own_store: bool = True,
        log: Path | None = None,
        cpus: int = 2,
        ready_within_s: float = READY_WITHIN_S,
        progress: bool = False,
    ) -> None:
        self.port = port or free_port()
        self.host = host
        self.url = f"http://{_reachable(host)}:{self.port}"
        self.metrics_port = metrics_port or free_port()
        self.dashboard_port = free_port() if dashboard_port == 0 else dashboard_port
        self.targets = ROOT / "build" / "prometheus" / f"{self.port}.json"
        self.log = log or ROOT / "build" / f"serve-{self.port}.log"
        self.tag = f"{ROOT}:{self.port}:{uuid.uuid4().hex}"
        self.environment = {**os.environ, **serve_environment(), **(env or {}), TAG: self.tag}
        self.environment |= haproxy_ports(self.environment)
        self.environment.pop(
            "RAY_ADDRESS", None
        )  # the server has its own Ray cluster, even if the shell names another one
        self.settings = settings
        overrides = {"settings": settings, "model": model, "conductor": conductor}
        app = [APP, *(f"{name}={value}" for name, value in overrides.items() if value)]
        self._target = [str(config)] if config else app
        self._ready = ready
        self._own_store = own_store and STORE not in (env or {})
        self._cpus = cpus
        self._ready_within_s = ready_within_s
        self._progress = progress
        self._child: subprocess.Popen[bytes] | None = None
        self._claim = ExitStack()
        self.folder: ServerFolder | None = None
        self._has_failed = False
        self.killed: list[int] = []

    def __enter__(self) -> Self:
        check_nothing_in_the_way(self.port, self.environment)
        sweep_folders()
        self._claim.enter_context(claim(self.port))
        self.folder = make_folder(self.tag)
        self.environment |= self.folder.environment
        if self._own_store:
            self.environment[STORE] = f"sqlite:///{self.folder.path / 'podium.db'}"
        try:
            self._start()
            self._wait_until_ready()
            self._write_prometheus_target()
        except BaseException as exc:
            self._has_failed = isinstance(exc, ServeError)
            self.stop()
            raise
        record_shared_memory(self.folder.path)
        return self

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        ports = ["--host", self.host, "--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        if self.dashboard_port is not None:
            ports += ["--dashboard-port", str(self.dashboard_port)]
        child = ["-m", CHILD, *ports, "--cpus", str(self._cpus)]
        self.log.unlink(missing_ok=True)  # an older log may be readable by other accounts
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self.log, flags, 0o600), "ab") as output:
            self._child = subprocess.Popen(
                [sys.executable, *child, *self._target],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C reaches only this process, which passes it on once
            )
        threading.Thread(target=keep_log_short, args=(self.log, self._child), daemon=True).start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        line = Progress("starting Ray Serve and the engines") if self._progress else None
        while not self.is_ready():
            elapsed_s = time.monotonic() - started
            if not self.is_running():
                raise ServeError(f"The server exited before it was ready.\n{self.log_tail()}")
            if elapsed_s > self._ready_within_s:
                raise ServeError(f"The server was not ready after {elapsed_s:.0f} s.\n{self.log_tail()}")
            if line:
                line.show("...")
            time.sleep(0.25)
        for other in (p for p in listeners(self.port) if tag_of(p) != self.tag):
            raise ServeError(f"Port {self.port} is also used by {describe(other)}.")
        if line:
            line.finish("ready")

    def _write_prometheus_target(self) -> None:
        """Write the target file of `cluster/prometheus.yaml`, which Ray writes only with its dashboard."""
        self.targets.parent.mkdir(parents=True, exist_ok=True)
        target = {"targets": [f"{HOST}:{self.metrics_port}"], "labels": {"job": "ray"}}
        self.targets.write_text(json.dumps([target]))

    def is_running(self) -> bool:
        """Return whether the server's child process still runs."""
        return self._child is not None and self._child.poll() is None

    def is_ready(self) -> bool:
        return all(map(self.answers, self._ready))

    def answers(self, path: str) -> bool:
        """Return whether `path` answers 200 now to a client without a key."""
        return self.read(path) is not None

    def read(self, path: str) -> bytes | None:
        """Request `path` without a key, and return the response body, or None if the status is not 200."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}{path}", timeout=5) as answer:
                return answer.read() if answer.status == 200 else None
        except (HTTPException, OSError, ValueError):
            return None

    def log_tail(self, lines: int = 25) -> str:
        """Return the last lines of the log, and the paths of the log and of Ray's logs."""
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        parts = ["Last lines of the log:", *(f"  {line}" for line in tail), f"Full log: {self.log}"]
        if self.ray_logs.exists() or (self.folder and self.folder.has_logs):
            parts.append(f"Logs of Ray: {self.ray_logs}")
        return "\n".join(parts)

    @property
    def ray_logs(self) -> Path:
        """Folder in which Ray's logs are kept if the server has failed."""
        return self.log.with_suffix(".ray")

    def stop(self) -> bool:
        """Stop the server with SIGINT, then end what remains. Return whether no process was killed. A second
        call does nothing.
        """
        child, self._child = self._child, None
        folder, self.folder = self.folder, None
        self.targets.unlink(missing_ok=True)
        with self._claim:
            if folder is not None:
                record_shared_memory(folder.path)
            if child is not None:
                self._has_failed |= child.poll() is not None
                self._end(child)
            if folder is not None:
                has_failed = self._has_failed or bool(self.killed)
                folder.remove(keep_logs=self.ray_logs if has_failed else None)
        return not self.killed

    def _end(self, child: subprocess.Popen[bytes]) -> None:
        if child.poll() is None:
            child.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(STOP_WITHIN_S)
        if child.poll() is None:
            child.kill()
            child.wait()
            self.killed.append(child.pid)
        deadline = time.monotonic() + LAST_PROCESSES_S
        while (rest := processes_of(self.tag)) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.killed += end(rest, within_s=5)
