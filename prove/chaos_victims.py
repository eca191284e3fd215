"""Which processes of a local server are which, and killing one of them. Knows Ray Serve's names of them, nothing else."""

import asyncio
import random
import time
from collections.abc import Mapping

import psutil

from cluster.local.processes import command_of, processes_of
from prove.routers import ProofError

VICTIMS: Mapping[str, str] = {
    "router": "ray::ServeReplica:default:router",
    "replica": "ray::ServeReplica:default:vllm-engine",
    "proxy": "ray::ProxyActor",
    "controller": "ray::ServeController",
}
"""How the command line of each begins."""
REPLACED_WITHIN_S = 60.0


def processes(tag: str, kind: str) -> list[psutil.Process]:
    """Those of a kind that live."""
    return [each for each in processes_of(tag) if command_of(each).startswith(VICTIMS[kind])]


def kill_one(tag: str, kind: str) -> float:
    """Kill one, drawn at random, as a crash would; gives the monotonic time.

    Raises:
        ProofError: there is none.
    """
    found = processes(tag, kind)
    if not found:
        raise ProofError(f"no {kind} runs: {sorted(map(command_of, processes_of(tag)))}")
    random.choice(found).kill()
    return time.monotonic()


async def wait_until_replaced(tag: str, kind: str, n: int) -> float:
    """Until `n` of them live again; gives the seconds that it took.

    Raises:
        ProofError: it took too long.
    """
    began_s = time.monotonic()
    while len(processes(tag, kind)) < n:
        if time.monotonic() - began_s > REPLACED_WITHIN_S:
            raise ProofError(f"the {kind} that was killed did not come back in {REPLACED_WITHIN_S:g} s")
        await asyncio.sleep(0.25)
    return time.monotonic() - began_s
