"""Ports of a server, probed without a credential. build/exposure/ keeps the table of `podium exposure`."""

import time

from cluster.local.ports import Port, list_ports, table
from cluster.local.processes import ROOT, processes_of

CREDENTIALS = {"a token (gRPC)", "a credential (HTTP 401)", "a credential (HTTP 403)"}


def note(name: str, ports: list[Port]) -> str:
    path = ROOT / "build/exposure" / f"{name}.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(table(ports) + "\n")
    return table(ports)


def ports_once_open(tag: str, needed: set[int]) -> list[Port]:
    """Return the open ports once `needed` are among them. HAProxy restarts whenever Ray Serve changes its
    configuration.
    """
    until_s = time.monotonic() + 30
    while True:
        ports = list_ports(processes_of(tag))
        if needed <= {each.port for each in ports}:
            return ports
        assert time.monotonic() < until_s, table(ports)
        time.sleep(0.5)
