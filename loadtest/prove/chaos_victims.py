"""Find the processes of a cluster by kind, and kill one of them or a whole node.

This module knows how Ray, Ray Serve and vLLM name their processes.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Mapping
from typing import NamedTuple

import psutil

from cluster.local.processes import command_of
from loadtest.prove.chaos_cluster import HEAD, WORKERS, ChaosCluster
from loadtest.rig import RigError

NODE, HEAD_NODE = "node", "head"
VICTIMS: Mapping[str, str] = {
    "router": "ray::ServeReplica:podium:router",
    "replica": "ray::ServeReplica:podium:vllm-engine",
    "engine": "VLLM::EngineCore",  # of a real engine; its replica survives
    "proxy": "haproxy",  # or Serve's own proxy
    "manager": "ray::HAProxyManager",
    "controller": "ray::ServeController",
    NODE: "",  # all processes of a worker
    HEAD_NODE: "",  # all processes of the head: Ray's state, the controller, the proxy
}
"""Start of the command line of each kind."""
SERVES_PROXY = "ray::ProxyActor"
REPLACED_WITHIN_S = 180.0
"""Seconds within which a killed process must be replaced. A real engine on a busy machine takes a minute."""


def kinds_of(*, has_haproxy: bool, has_engine: bool, has_redis: bool = False) -> list[str]:
    """Return the kinds of processes that such a cluster has, and whose loss it survives."""
    absent = {"manager": not has_haproxy, "engine": not has_engine, HEAD_NODE: not has_redis}
    return [kind for kind in VICTIMS if not absent.get(kind)]


def processes(cluster: ChaosCluster, kind: str) -> list[psutil.Process]:
    """Return the live processes of a kind: for nodes their replicas, for the head its proxy."""
    alive, kind = cluster.processes(), "proxy" if kind == HEAD_NODE else kind
    if kind == NODE:
        return [each for each in alive if command_of(each).startswith("ray::ServeReplica")]
    if kind == "proxy" and cluster.uses_haproxy:  # its command line starts with its path
        return [each for each in alive if _name_of(each) == VICTIMS[kind]]
    start = SERVES_PROXY if kind == "proxy" else VICTIMS[kind]
    return [each for each in alive if command_of(each).startswith(start)]


class Kill(NamedTuple):
    """A kill: its monotonic time, the killed process ids, and the number of a killed node."""

    at_s: float
    pids: frozenset[int]
    node: int | None


def kill_one(cluster: ChaosCluster, kind: str) -> Kill:
    """Kill a random process of the kind with SIGKILL. A killed node is replaced by a new one."""
    node = {NODE: random.choice(WORKERS), HEAD_NODE: HEAD}.get(kind)
    candidates = processes(cluster, kind) if node is None else cluster.processes(node)
    if not candidates:
        raise RigError(
            f"No process of kind {kind} is running. Running processes: {sorted(map(command_of, cluster.processes()))}"
        )
    # After a reload, old HAProxy processes finish their streams next to the new one: together they are the proxy.
    victims = [random.choice(candidates)] if node is None and kind != "proxy" else candidates
    for each in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    kill = Kill(time.monotonic(), frozenset(each.pid for each in victims), node)
    if node is not None:
        cluster.replace_node(node)
    return kill


async def wait_until_replaced(cluster: ChaosCluster, kind: str, n: int, kill: Kill) -> float:
    """Wait until `n` new processes of the kind are alive. Return the seconds since the kill."""
    n = 1 if kind in ("proxy", HEAD_NODE) else n
    while sum(each.pid not in kill.pids for each in processes(cluster, kind)) < n:
        if time.monotonic() - kill.at_s > REPLACED_WITHIN_S:
            raise RigError(f"The killed {kind} was not replaced within {REPLACED_WITHIN_S:g} s.")
        if kill.node in WORKERS:
            cluster.start_again(kill.node)
        await asyncio.sleep(0.25)
    return time.monotonic() - kill.at_s


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""
