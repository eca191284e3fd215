"""Find and end the processes of Podium servers on this machine, and find processes that listen on a port.

Every process of a server inherits the environment variable `PODIUM_SERVER`, whose value is called the
server's tag here. Processes are found and ended by their tag, never by their name. Processes that a crashed
server left running are recognised in the same way (docs/decisions/0009).
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections.abc import Generator, Mapping

import psutil

from serving import IS_CHECKOUT, ROOT

HOST = "127.0.0.1"
TAG = "PODIUM_SERVER"
CHILD = "cluster.local.child"
"""Module of the process that starts all other processes of a server."""
HAPROXY_PORTS = {
    "RAY_SERVE_HAPROXY_STATS_PORT": 8404,
    "RAY_SERVE_HAPROXY_METRICS_PORT": 9101,
    "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": 8500,
    "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": 9500,
}
"""Default ports of HAProxy and of Serve's proxy behind it, by variable. A `Server` chooses free ones, so that
a second one can start.
"""


STOP = "make stop" if IS_CHECKOUT else "podium stop"
"""Command that ends forgotten servers, for messages."""


def other_port(port: int) -> str:
    """Return the command that serves on another port than `port`, for messages."""
    return f"make serve PORT={port + 1}" if IS_CHECKOUT else f"podium serve --port {port + 1}"


class ServeError(Exception):
    """The server could not start or ended unexpectedly. The message says why and what to do."""


def processes_of(tag: str) -> list[psutil.Process]:
    """Return all running processes of the servers whose tag begins with `tag`."""
    result: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            ours = tag_of(process).startswith(tag) and process.pid != os.getpid()
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                result.append(process)
    return result


def leads(process: psutil.Process) -> bool:
    """Return whether this process is the one that starts all other processes of a server (`CHILD`)."""
    try:
        return CHILD in process.cmdline()
    except psutil.Error:
        return False


def orphans_here() -> list[psutil.Process]:
    """Return processes of this checkout's crashed servers: with a tag, but without its `cluster.local.child`."""
    by_tag: dict[str, list[psutil.Process]] = {}
    for process in processes_of(f"{ROOT}:"):
        by_tag.setdefault(tag_of(process), []).append(process)
    return [p for processes in by_tag.values() if not any(map(leads, processes)) for p in processes]


def command_of(process: psutil.Process) -> str:
    """Return the process's command line, or its name if it has none."""
    try:
        return (
            " ".join(process.cmdline()).strip()[:90] or process.name()
        )  # Ray pads the names of its processes
    except psutil.Error:
        return "ended meanwhile"


def listeners(port: int) -> list[psutil.Process]:
    """Return the processes that listen on `port` and that this account may inspect."""
    pids: set[int] = set()
    with contextlib.suppress(psutil.Error):
        for connection in psutil.net_connections(kind="tcp"):
            here = connection.laddr  # (host, port), or () for a socket that is not bound
            if here and here[1] == port and connection.status == psutil.CONN_LISTEN and connection.pid:
                pids.add(connection.pid)
    result: list[psutil.Process] = []
    for pid in sorted(pids):
        with contextlib.suppress(psutil.Error):
            result.append(psutil.Process(pid))
    return result


def tag_of(process: psutil.Process) -> str:
    """Return the tag of the server that started the process, or "" if no server did."""
    with contextlib.suppress(psutil.Error, OSError):
        return process.environ().get(TAG, "")
    return ""


def is_free(port: int) -> bool:
    """Return whether a server could listen on `port` of the loopback interface now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return not listeners(port)  # a listener on 0.0.0.0 with SO_REUSEPORT does not make `bind` fail


def haproxy_ports(environment: Mapping[str, str]) -> dict[str, str]:
    """Return a free port for each variable in `HAPROXY_PORTS` that is not set, if HAProxy is enabled."""
    if environment.get("RAY_SERVE_ENABLE_HA_PROXY") != "1":
        return {}
    return {name: str(free_port()) for name in HAPROXY_PORTS if name not in environment}


def free_port() -> int:
    """Return a free port below the kernel's ephemeral range, from which Ray's processes take many ports."""
    while True:
        port = random.randrange(20_000, 32_000)
        if is_free(port):
            return port


def describe(process: psutil.Process) -> str:
    """Describe a process as `pid 123 (haproxy -f ...)`, with advice on how to end it."""
    command, tag = command_of(process), tag_of(process)
    text = f"pid {process.pid} ({command})"
    if tag.startswith(f"{ROOT}:"):
        return f"{text}, a Podium server of this checkout. Stop it with `{STOP}`"
    if command.startswith("haproxy"):
        return f"{text}, which a crashed Ray Serve left running. Stop it with `kill {process.pid}`"
    if tag or "ray::" in command or "serve run" in command:
        return f"{text}, another Ray Serve. Stop its `serve run` with Ctrl-C or `kill -INT`"
    return text


def check_nothing_in_the_way(port: int, environment: Mapping[str, str]) -> None:
    """Check that ports are free and no processes of crashed servers run. The ServeError says how to end one."""
    ports = [port]
    if environment.get("RAY_SERVE_ENABLE_HA_PROXY") == "1":
        ports += [int(environment.get(name, default)) for name, default in HAPROXY_PORTS.items()]
    for busy_port in (p for p in ports if not is_free(p)):
        holder = next(
            map(describe, listeners(busy_port)),
            "a process of another account, which this account cannot inspect",
        )
        raise ServeError(
            f"Port {busy_port} is in use by {holder}."
            + (f"\nOr serve on another port: {other_port(port)}" if busy_port == port else "")
        )
    if orphans := orphans_here():
        pids = "\n".join(f"  pid {p.pid}  {command_of(p)}" for p in orphans)
        raise ServeError(
            f"A Podium server of this checkout crashed and left these processes running:\n{pids}\nStop them with `{STOP}`."
        )


@contextlib.contextmanager
def claim(port: int) -> Generator[None]:
    """Reserve `port` for a server, so that a second one on it fails although Ray Serve uses SO_REUSEPORT.

    The reservation is a name in Linux's abstract socket namespace. It is in the port's network namespace, and
    ends with this process.
    """
    with socket.socket(socket.AF_UNIX) as claim:
        try:
            claim.bind(f"\0podium-port-{port}")
        except OSError:
            raise ServeError(
                f"Another Podium server is using or starting on port {port}.\nServe on another port: {other_port(port)}"
            ) from None
        yield


def end(processes: list[psutil.Process], within_s: float) -> list[int]:
    """Terminate the processes, kill those that run after `within_s` seconds, and return the killed pids."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=within_s)
    for process in alive:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(alive, timeout=3)
    return [p.pid for p in alive]
