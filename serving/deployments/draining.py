"""A replica that Ray Serve removes (scale-down, a new version, an application that is deleted): it gets no new requests and may finish those it has. What
is not finished shortly before its time is over is left, in a way that clients and other replicas understand.

Knows how a replica finds out that it is being removed; knows nothing of runs.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from ray._private.worker import global_worker

LOOKS_EVERY_S = 0.5
LEAST_MARGIN_S, MARGIN, MOST_MARGIN_S = 1.0, 0.25, 10.0
"""Time that is kept for ends to be written down and told: a quarter of what Serve gives, ten seconds at most."""


def find_timeout_s() -> float | None:
    """How many seconds Serve gives this process's replica to end, where it has asked it to; None: it has not.

    Serve tells a replica's own code only once its last request has ended, so this is read from Serve's own object
    (`ray/serve/_private/replica.py`, Ray 2.60); None where that is not found.
    """
    here = cast(Any, global_worker)
    replica = getattr(here.actors.get(here.actor_id), "_replica_impl", None)
    if not getattr(replica, "_shutting_down", False):
        return None
    return float(getattr(replica, "_deployment_config").graceful_shutdown_timeout_s)  # noqa: B009 (Serve's own)


def timeout_s(drain_s: float) -> float:
    """What Serve is to give a replica, so that it leaves what it has after `drain_s` and not before."""
    return drain_s + min(MOST_MARGIN_S, max(LEAST_MARGIN_S, drain_s * MARGIN / (1 - MARGIN)))


def leaves_after_s(timeout_s: float) -> float:
    """How long after it was asked to end a replica leaves what it has, of what Serve gives it."""
    return max(0.0, timeout_s - min(MOST_MARGIN_S, max(LEAST_MARGIN_S, MARGIN * timeout_s)))


async def leave_in_time(leave: Callable[[], None]) -> None:
    """Wait until this replica is being removed, and then nearly for as long as it is given; then `leave`, again and again: a
    request may have been on its way.
    """
    while (given_s := find_timeout_s()) is None:  # noqa: ASYNC110 (Serve sets it, and tells nobody)
        await asyncio.sleep(LOOKS_EVERY_S)
    await asyncio.sleep(leaves_after_s(given_s))
    while True:
        leave()
        await asyncio.sleep(LOOKS_EVERY_S)
