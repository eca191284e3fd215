"""Which processes of a cluster are which, and killing one of them, or a whole node. Knows the names that Ray, Ray Serve and vLLM give
them, nothing of workflows.
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
    "engine": "VLLM::EngineCore",  # of a real engine; its replica lives on
    "proxy": "haproxy",  # or Serve's own
    "manager": "ray::HAProxyManager",
    "controller": "ray::ServeController",
    NODE: "",  # everything on one worker
    HEAD_NODE: "",  # everything there: Ray's own state, the controller, the proxy
}
"""How the command line of each begins."""
SERVES_PROXY = "ray::ProxyActor"
REPLACED_WITHIN_S = 180.0
"""A real engine on a busy machine takes a minute."""


def kinds_of(*, has_haproxy: bool, has_engine: bool, has_redis: bool = False) -> list[str]:
    """Those that such a cluster has, and survives."""
    absent = {"manager": not has_haproxy, "engine": not has_engine, HEAD_NODE: not has_redis}
    return [kind for kind in VICTIMS if not absent.get(kind)]


def processes(cluster: ChaosCluster, kind: str) -> list[psutil.Process]:
    """Those of a kind that live; of a node, the replicas of all workers; of the head, the proxy."""
    found, kind = cluster.processes(), "proxy" if kind == HEAD_NODE else kind
    if kind == NODE:
        return [each for each in found if command_of(each).startswith("ray::ServeReplica")]
    if kind == "proxy" and cluster.uses_haproxy:  # its command line begins with its path
        return [each for each in found if _name_of(each) == VICTIMS[kind]]
    start = SERVES_PROXY if kind == "proxy" else VICTIMS[kind]
    return [each for each in found if command_of(each).startswith(start)]


class Kill(NamedTuple):
    """When it was, by the monotonic clock, the ids of the processes, and the node where it was all of one."""

    at_s: float
    pids: frozenset[int]
    node: int | None


def kill_one(cluster: ChaosCluster, kind: str) -> Kill:
    """Kill one, drawn at random, as a crash would, and put a new machine in a node's place.

    Raises:
        RigError: there is none.
    """
    node = {NODE: random.choice(WORKERS), HEAD_NODE: HEAD}.get(kind)
    found = processes(cluster, kind) if node is None else cluster.processes(node)
    if not found:
        raise RigError(f"no {kind} runs: {sorted(map(command_of, cluster.processes()))}")
    # HAProxy's old processes serve their streams to the end beside the new one: together they are the proxy.
    victims = [random.choice(found)] if node is None and kind != "proxy" else found
    for each in victims:
        with contextlib.suppress(psutil.NoSuchProcess):
            each.kill()
    kill = Kill(time.monotonic(), frozenset(each.pid for each in victims), node)
    if node is not None:
        cluster.replace_node(node)
    return kill


async def wait_until_replaced(cluster: ChaosCluster, kind: str, n: int, kill: Kill) -> float:
    """Until `n` of them live again, those that were killed and are not gone yet left out; gives the seconds since.

    Raises:
        RigError: it took too long.
    """
    n = 1 if kind in ("proxy", HEAD_NODE) else n
    while sum(each.pid not in kill.pids for each in processes(cluster, kind)) < n:
        if time.monotonic() - kill.at_s > REPLACED_WITHIN_S:
            raise RigError(f"the {kind} that was killed did not come back in {REPLACED_WITHIN_S:g} s")
        if kill.node in WORKERS:
            cluster.start_again(kill.node)
        await asyncio.sleep(0.25)
    return time.monotonic() - kill.at_s


def _name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""
