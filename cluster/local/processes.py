"""Processes of this machine: which are ours, which listen on a port, and how they are ended.

Every process of a server inherits an environment variable, `PODIUM_SERVER`, and is found again by it:
nothing is ever looked up, or ended, by its name. A crash's left-overs are recognised the same way
(docs/decisions/0009).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Generator, Mapping
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[2]
HOST = "127.0.0.1"
TAG = "PODIUM_SERVER"
CHILD = "cluster.local.child"
"""The module that leads a server's processes."""
HAPROXY_PORTS = {
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}
"""Those that HAProxy and Serve's proxy behind it take beside the HTTP port: the variables that name them, and what they are
without. A `Server` takes free ones, so that a second one can start."""


class ServeError(Exception):
    """The server cannot start, or died; the message says why and what to do."""


def processes_of(tag: str) -> list[psutil.Process]:
    """Every living process whose environment says that a server with this tag, or tag prefix, started it."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = tag_of(process).startswith(tag) and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def leads(process: psutil.Process) -> bool:
    """Whether this is a server's child, `python -m cluster.local.child`."""
    try:
        return CHILD in process.cmdline()
    except psutil.Error:
        return False


def orphans_here() -> list[psutil.Process]:
    """What servers of this checkout left behind: tagged, and the child that led them is gone."""
    by_tag: dict[str, list[psutil.Process]] = {}
    for process in processes_of(f"{ROOT}:"):
        by_tag.setdefault(tag_of(process), []).append(process)
    return [p for processes in by_tag.values() if not any(map(leads, processes)) for p in processes]


def command_of(process: psutil.Process) -> str:
    """The process's command line, or its name where it has none."""
    try:
        return " ".join(process.cmdline()).strip()[:90] or process.name()  # Ray pads the names it gives
    except psutil.Error:
        return "ended meanwhile"


def listeners(port: int) -> list[psutil.Process]:
    """The processes that listen on `port`, as far as this account may see them."""
    pids: set[int] = set()
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            here = connection.laddr  # (host, port), or () for a socket that is not bound
            if here and here[1] == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                pids.add(connection.pid)
    found: list[psutil.Process] = []
    for pid in sorted(pids):
        with contextlib.suppress(psutil.Error):
            found.append(psutil.Process(pid))
    return found


def tag_of(process: psutil.Process) -> str:
    """The tag of the server that started it; empty for everybody else's."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(TAG, "")
    return ""


def is_free(port: int) -> bool:
    """Whether a server could bind `port` on loopback right now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return not listeners(port)  # 0.0.0.0 with SO_REUSEPORT would let us bind beside it


def haproxy_ports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a free port for each of `HAPROXY_PORTS` that `environment` does not name; none where HAProxy is not used."""
    if environment.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        return {}
    return {name: str(free_port()) for name in HAPROXY_PORTS if name not in environment}


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel hands out: Ray's own processes take many
    of these.
    """
    while True:
        port = random.randrange(20_000, 32_000)
        if is_free(port):
            return port


def describe(process: psutil.Process) -> str:
    """`pid 123 (haproxy -f ...)`, and what to do about such a process."""
    command, tag = command_of(process), tag_of(process)
    told = f"pid {process.pid} ({command})"
    if tag.startswith(f"{ROOT}:"):
        return f"{told}, a Podium of this checkout. End it with `make stop`"
    if command.startswith("haproxy"):
        return f"{told}, left over by a Ray Serve that crashed. End it with `kill {process.pid}`"
    if tag or "ray::" in command or "serve run" in command:
        return f"{told}, another Ray Serve. Stop its `serve run` with Ctrl-C (or kill -INT)"
    return told


def check_nothing_in_the_way(port: int, environment: Mapping[str, str]) -> None:
    """The ports are free and no crashed server of ours still holds memory.

    Raises:
        ServeError: says which process is in the way and how to end it.
    """
    ports = [port]
    if environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        ports += [int(environment.get(name, usual)) for name, usual in HAPROXY_PORTS.items()]
    for taken in (p for p in ports if not is_free(p)):
        holder = next(
            map(describe, listeners(taken)), "a process of another account, which this one may not see"
        )
        raise ServeError(
            f"Port {taken} is taken by {holder}."
            + (f"\nOr serve on another one: make serve PORT={port + 1}" if taken == port else "")
        )
    if orphans := orphans_here():
        pids = "\n".join(f"  pid {p.pid}  {command_of(p)}" for p in orphans)
        raise ServeError(
            f"A Podium of this checkout crashed and left these running:\n{pids}\nEnd them with `make stop`."
        )


@contextlib.contextmanager
def claim(port: int) -> Generator[None]:
    """Reserve `port` for a server that is about to bind it: of two that start at the same moment, one fails.

    Ray Serve binds with SO_REUSEPORT, so the kernel would let both in and deal requests out between them.
    The claim is a name in Linux's abstract socket namespace: it belongs to the same network namespace as
    the port, and dies with this process.

    Raises:
        ServeError: another one has claimed it.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0podium-port-{port}")
        except OSError:
            raise ServeError(
                f"Another Podium has just been started on port {port}.\nServe on another one: make serve PORT={port + 1}"
            ) from None
        yield


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
