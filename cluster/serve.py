"""Starts Podium on this machine, waits until it answers, and takes all of it down again. `make serve`.

    with Server(port=0) as server:            # tests and the demo: a free port, ready when entered
        httpx2.get(f"{server.url}/v1/models")

The child is `serve run serving.app:build_app settings=...` on a Ray of its own; its HTTP is loopback only. Every process it
leads to (Ray, replicas, vLLM's engine cores, HAProxy) inherits an environment variable, `PODIUM_SERVER`, and is found
again by it: nothing is ever looked up, or ended, by its name. A crash's left-overs are recognised the same way.

Knows processes, ports and `/readyz`; knows nothing of plans, workers or settings files.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from types import FrameType
from typing import Self

import psutil

ROOT = Path(__file__).resolve().parent.parent
SETTINGS = "cluster/local.yaml"
HOST = "127.0.0.1"
TAG = "PODIUM_SERVER"
HAPROXY_PORTS = (8404, 9101)

READY_WITHIN_S = 600.0  # a compiled vLLM on a slow, shared machine takes minutes
STOP_WITHIN_S = 45.0
LAST_PROCESSES_S = 8.0


class ServeError(Exception):
    """The server cannot start, or died; the message says why and what to do."""


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


# ------------------------------------------------------------------------------------------------ who is there


def tagged(tag: str) -> list[psutil.Process]:
    """Every living process whose environment says that a server with this tag, or tag prefix, started it."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            value = process.environ().get(TAG, "")
            if (
                value.startswith(tag)
                and process.pid != os.getpid()
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.append(process)
    return found


def leads(process: psutil.Process) -> bool:
    """Whether this is a server's child, `python -m cluster.serve --child`, or the command that waits for it."""
    try:
        return "cluster.serve" in process.cmdline()
    except psutil.Error:
        return False


def left_over() -> list[psutil.Process]:
    """What servers of this checkout left behind: tagged, and the child that led them is gone."""
    by_tag: dict[str, list[psutil.Process]] = {}
    for process in tagged(f"{ROOT}:"):
        with contextlib.suppress(psutil.Error, OSError):  # it may end while we look
            by_tag.setdefault(process.environ()[TAG], []).append(process)
    return [p for processes in by_tag.values() if not any(map(leads, processes)) for p in processes]


def named(process: psutil.Process) -> str:
    """The process's command line, or its name where it has none."""
    try:
        return " ".join(process.cmdline())[:90] or process.name()
    except psutil.Error:
        return "ended meanwhile"


def listener(port: int) -> psutil.Process | None:
    """The process that listens on `port`, where this account may see it."""
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            here = connection.laddr  # (host, port), or () for a socket that is not bound
            if here and here[1] == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                return psutil.Process(connection.pid)
    return None


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback right now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return listener(port) is None  # 0.0.0.0 with SO_REUSEPORT would let us bind beside it


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel hands out: Ray's own processes take many of these."""
    while True:
        port = random.randrange(20_000, 32_000)
        if is_free(port):
            return port


def describe(process: psutil.Process | None) -> str:
    """`pid 123 (haproxy -f ...)`, and what to do about such a process."""
    if process is None:
        return "a process of another account, which this one may not see"
    with contextlib.suppress(psutil.Error):
        command = named(process)
        owner = process.environ().get(TAG, "")
        if owner.startswith(f"{ROOT}:"):
            return f"pid {process.pid} ({command}), a Podium of this checkout. End it with `make stop`"
        if "haproxy" in process.name():
            return f"pid {process.pid} ({command}), left over by a Ray Serve that crashed. End it with `kill {process.pid}`"
        if owner or "ray::" in command or "serve run" in command:
            return f"pid {process.pid} ({command}), another Ray Serve. Stop its `serve run` with Ctrl-C (or kill -INT)"
        return f"pid {process.pid} ({command})"
    return f"pid {process.pid}"


def check_nothing_in_the_way(port: int, environment: Mapping[str, str]) -> None:
    """The ports are free and no crashed server of ours still holds memory.

    Raises:
        ServeError: says which process is in the way and how to end it.
    """
    ports = [port, *(HAPROXY_PORTS if environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1" else ())]
    for taken in (p for p in ports if not is_free(p)):
        raise ServeError(
            f"Port {taken} is taken by {describe(listener(taken))}."
            + (f"\nOr serve on another one: make serve PORT={port + 1}" if taken == port else "")
        )
    if orphans := left_over():
        pids = "\n".join(f"  pid {p.pid}  {named(p)}" for p in orphans)
        raise ServeError(
            f"A Podium of this checkout crashed and left these running:\n{pids}\nEnd them with `make stop`."
        )


def end(processes: list[psutil.Process], within_s: float) -> list[int]:
    """Terminate, wait, kill what is still there; gives the pids that had to be killed."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
    return [p.pid for p in alive]


# ------------------------------------------------------------------------------------------------ the server


class Server:
    """One local Podium as a context manager: entered once `/readyz` answers 200, left once nothing of it runs.

    Args:
        settings: the YAML that says what is served.
        port: HTTP port on loopback; 0 takes a free one.
        model: a hub's name or a folder, passed on as `model=` (the local workers' model).
        env: more environment for every process of it; wins over `serve_environment()`.
        log: file that gets all output; `build/serve-<port>.log` by default.
        cpus: logical CPUs that Ray may hand out. Deployments ask for fractions of one.
        ready_within_s: seconds until not being ready is an error.
        progress: called about every half second while starting, with the seconds since the start.
    """

    def __init__(
        self,
        *,
        settings: str | Path = SETTINGS,
        port: int = 8000,
        model: str | None = None,
        env: Mapping[str, str] | None = None,
        log: Path | None = None,
        cpus: int = 2,
        ready_within_s: float = READY_WITHIN_S,
        progress: Callable[[float], None] | None = None,
    ) -> None:
        self.port = port or free_port()
        self.url = f"http://{HOST}:{self.port}"
        self.log = log or ROOT / "build" / f"serve-{self.port}.log"
        self.tag = f"{ROOT}:{self.port}:{uuid.uuid4().hex}"
        self.environment = {**os.environ, **serve_environment(), **(env or {}), TAG: self.tag}
        self.environment.pop("RAY_ADDRESS", None)  # a cluster of its own, whatever the shell points at
        self._arguments = [f"settings={settings}", *([f"model={model}"] if model else [])]
        self._cpus = cpus
        self._ready_within_s = ready_within_s
        self._progress = progress or (lambda _elapsed_s: None)
        self._child: subprocess.Popen[bytes] | None = None
        self.killed: list[int] = []

    def __enter__(self) -> Self:
        check_nothing_in_the_way(self.port, self.environment)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "cluster.serve",
            "--child",
            "--port",
            str(self.port),
            "--cpus",
            str(self._cpus),
        ]
        with self.log.open("wb") as output:
            self._child = subprocess.Popen(
                [*command, *self._arguments],
                cwd=ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # the terminal's Ctrl-C reaches us, and we pass it on once
            )
        try:
            self._wait_until_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wait_until_ready(self) -> None:
        started = time.monotonic()
        while not self.is_ready():
            elapsed_s = time.monotonic() - started
            if not self.is_running():
                raise ServeError(f"The server ended before it was ready.\n{self.log_tail()}")
            if elapsed_s > self._ready_within_s:
                raise ServeError(f"The server was not ready after {elapsed_s:.0f} s.\n{self.log_tail()}")
            self._progress(elapsed_s)
            time.sleep(0.25)

    def is_running(self) -> bool:
        """Whether the child still runs."""
        return self._child is not None and self._child.poll() is None

    def is_ready(self) -> bool:
        """Whether `/readyz` says 200 now. Any other answer, or none, is a no."""
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with direct.open(f"{self.url}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError, ValueError):
            return False

    def log_tail(self, lines: int = 25) -> str:
        """The last lines of the log, and where the rest is."""
        tail = self.log.read_text(errors="replace").splitlines()[-lines:]
        return "\n".join(["Its last words:", *(f"  {line}" for line in tail), f"All of it: {self.log}"])

    def stop(self) -> bool:
        """SIGINT, wait, then look that nothing is left; whether it ended by itself. May be called twice."""
        child, self._child = self._child, None
        if child is None:
            return not self.killed
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
        return not self.killed


# ------------------------------------------------------------------------------------------------ the child


def watch_parent(parent_pid: int) -> None:
    """End this process as Ctrl-C would once its parent is gone, even by SIGKILL."""

    def look() -> None:
        while os.getppid() == parent_pid:
            time.sleep(1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True, name="watch-parent").start()


def run_child(port: int, cpus: int, arguments: list[str]) -> int:
    """`serve run serving.app:build_app ...` on a fresh Ray, its HTTP port on loopback set first."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell's background job starts with SIGINT ignored
        signal.signal(number, signal.default_int_handler)
    watch_parent(os.getppid())
    import ray
    from ray import serve
    from ray.serve.scripts import run as serve_run

    import serving.app  # sets the tracing variables that Ray's processes inherit
    from serving.settings import SettingsError

    try:
        serving.app.build_app(dict(argument.split("=", 1) for argument in arguments))
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
    )
    serve.start(proxy_location="HeadOnly", http_options={"host": HOST, "port": port})
    # It catches Ctrl-C, shuts Serve down, and exits 0 also after an error: whether it was ready is the parent's to see.
    serve_run.main(args=["--app-dir", str(ROOT), "serving.app:build_app", *arguments], standalone_mode=False)
    return 0


# ------------------------------------------------------------------------------------------------ the command


READY = """
Podium answers on {url}  (Ctrl-C stops it; log: {log})

  curl {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "podium-mini", "messages": [{{"role": "user", "content": "What is the capital of France?"}}]}}'

  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="none")
  stream = client.chat.completions.create(
      model="podium-mini", stream=True, messages=[{{"role": "user", "content": "What is the capital of France?"}}])
  for chunk in stream:
      print(chunk.choices[0].delta.content or "" if chunk.choices else "", end="", flush=True)
"""


def starting_line() -> Callable[[float], None]:
    """A `progress` for `Server`: one live line on a terminal, in a log a line every ten seconds."""
    next_s = 0.0

    def say(elapsed_s: float) -> None:
        nonlocal next_s
        text = f"Starting Ray Serve and the engines ... {elapsed_s:.0f} s"
        if sys.stdout.isatty():
            print(f"\r\033[K{text}\r", end="", flush=True)
        elif elapsed_s >= next_s:
            next_s = elapsed_s + 10
            print(text, flush=True)

    return say


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
            print(READY.format(url=server.url, log=server.log.relative_to(ROOT)), flush=True)
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


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Serve Podium on this machine.")
    parser.add_argument("--settings", default=SETTINGS)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--model", default=None, help="a hub's name or a folder, for the local workers")
    parser.add_argument("--cpus", type=int, default=2, help="logical CPUs that Ray may hand out")
    parser.add_argument("--stop", action="store_true", help="end what this checkout left running")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("arguments", nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return run_child(options.port, options.cpus, options.arguments)
    signal.signal(signal.SIGINT, interrupted)
    signal.signal(signal.SIGTERM, interrupted)
    if options.stop:
        return stop_everything()
    server = Server(
        settings=options.settings,
        port=options.port,
        model=options.model,
        cpus=options.cpus,
        progress=starting_line(),
    )
    return serve_until_interrupted(server)


if __name__ == "__main__":
    sys.exit(main())
