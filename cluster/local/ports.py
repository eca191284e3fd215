"""`podium exposure`: list Podium's open ports on this machine, and what each requires of a client.

To find out what a port requires, this module sends a request without credentials: first by HTTP, then by gRPC
with a call that Ray's servers answer and that changes nothing. It does not read settings or keys.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from ipaddress import IPv6Address, ip_address
from socket import AF_INET
from typing import Annotated, Any, cast

import psutil
from typer import Option

from cluster.local.processes import ROOT, command_of, processes_of
from podium.command_line.program import Program

WITHIN_S = 5.0
METRICS, NOTHING, UNKNOWN = "nothing (metrics only)", "nothing", "unknown"
PATHS = ("/", "/api/v0/nodes")
"""Paths to request by HTTP. The second is an API of Ray's dashboard, whose static pages need no token."""
CALLS = (
    "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo",
    "/ray.rpc.NodeManagerService/GetNodeStats",
    "/ray.rpc.ObjectManagerService/Pull",
    "/ray.rpc.CoreWorkerService/GetCoreWorkerStats",
    "/ray.rpc.ReporterService/HealthCheck",
    "/ray.rpc.LogService/ListLogs",
    "/ray.rpc.events.EventAggregatorService/AddEvents",
    "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
    "/ray.rpc.RayletDriver/ClusterInfo",
    "/ray.serve.ASGIService/HandleRequest",
)
"""One method of each of Ray's gRPC servers that, with an empty message, changes nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Port:
    port: int
    address: str
    pid: int
    process: str
    asks_for: str = UNKNOWN
    """Credential that a client must send, or `NOTHING` or `UNKNOWN`."""

    @property
    def is_on_loopback(self) -> bool:
        """Whether only this machine can connect to the port."""
        address = ip_address(self.address)
        mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
        return (mapped or address).is_loopback

    @property
    def is_guarded(self) -> bool:
        """Whether other machines cannot connect, need a credential, or receive only metrics."""
        return self.is_on_loopback or self.asks_for not in (NOTHING, UNKNOWN)


def list_ports(processes: Iterable[psutil.Process]) -> list[Port]:
    """Return the ports on which the processes listen, and what each requires of a client."""
    ports: set[Port] = set()
    for process in processes:
        with suppress(psutil.Error):
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    here = cast(Any, connection.laddr)
                    ports.add(Port(here.port, here.ip, process.pid, command_of(process)))
    with ThreadPoolExecutor(16) as threads:
        return sorted(threads.map(_ask, ports))


def _ask(port: Port) -> Port:
    host = port.address
    if ip_address(host).is_unspecified:
        # Connect as another machine does, because Podium needs no key from its own machine.
        host = own_address() or "127.0.0.1"
    asks_for = ask_by_http(host, port.port) or ask_by_grpc(host, port.port) or UNKNOWN
    return Port(port.port, port.address, port.pid, port.process, asks_for)


def own_address() -> str | None:
    """Return an IPv4 address at which other machines can reach this one, or None if there is none."""
    addresses = (
        each.address
        for interface in psutil.net_if_addrs().values()
        for each in interface
        if each.family is AF_INET
    )
    return next((address for address in addresses if not ip_address(address).is_loopback), None)


def ask_by_http(host: str, port: int) -> str | None:
    """Find out by HTTP what a port requires of a client. Return None if the port does not speak HTTP."""
    try:
        for path in PATHS:
            status, _ = _get(host, port, path)
            if status in (401, 403):
                return f"a credential (HTTP {status})"
        status, kind = _get(host, port, "/metrics")
    except (OSError, http.client.HTTPException):
        return None
    return METRICS if status == 200 and kind.startswith("text/plain") else NOTHING


def ask_by_grpc(host: str, port: int) -> str | None:
    """Find out by gRPC what a port requires. Return None if it implements none of `CALLS`."""
    grpc: Any = import_module("grpc")  # slow to import; partial types
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    with grpc.insecure_channel(where, options=[("grpc.enable_http_proxy", 0)]) as channel:
        for method in CALLS:
            try:
                channel.unary_unary(method)(b"", timeout=WITHIN_S)
            except grpc.RpcError as exc:
                code = exc.code()
                if code is grpc.StatusCode.UNIMPLEMENTED:
                    continue
                if code is grpc.StatusCode.UNAUTHENTICATED:
                    return "a token (gRPC)"
                if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                    return None
            return NOTHING
    return None


def _get(host: str, port: int, path: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(host, port, timeout=WITHIN_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type", "")
    finally:
        connection.close()


def table(ports: Sequence[Port]) -> str:
    """Format the ports as a table, one line per port."""
    lines = [("port", "address", "reached by", "requires", "process")]
    for each in ports:
        reach = "this machine" if each.is_on_loopback else "other machines"
        lines.append((str(each.port), each.address, reach, each.asks_for, f"{each.process} ({each.pid})"))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


main = Program("podium exposure")


@main.command(
    epilog="This command connects to each port without credentials. docs/operations/network.md lists the ports that a cluster needs."
    "\n\nExample: podium exposure --all"
)
def list_open_ports(
    all: Annotated[
        bool,
        Option(
            "--all",
            help="check every process that this account can inspect, for example on a node of a cluster",
            show_default="servers of this checkout",
        ),
    ] = False,
) -> int:
    """List the ports on which Podium's servers on this machine listen, and what each port requires of a client.
    Exits with 1 if other machines can reach a port that requires no credentials, unless it only serves metrics.
    """
    own = psutil.Process(os.getpid())
    processes = [each for each in psutil.process_iter() if each != own] if all else processes_of(f"{ROOT}:")
    ports = list_ports(processes)
    if not ports:
        print("No open ports found. Use --all to check more than the servers of this checkout.")
        return 0
    print(table(ports))
    open_ports = [each for each in ports if not each.is_guarded]
    for each in open_ports:
        print(
            f"Warning: other machines can reach port {each.port} of {each.process}. It requires: {each.asks_for}."
        )
    return 1 if open_ports else 0
