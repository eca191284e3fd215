"""Drain a replica that Ray Serve removes because of a scale-down, a new version or a deleted application.

The replica gets no new requests and may finish the open ones. Shortly before its time is up, it abandons the
remaining runs in a way that clients and other replicas understand. This module only detects the removal. The
caller abandons the runs.
"""

import asyncio
from collections.abc import Callable
from typing import Any, cast

from ray._private.worker import global_worker

POLL_INTERVAL_S = 0.5
MIN_MARGIN_S, MARGIN, MAX_MARGIN_S = 1.0, 0.25, 10.0
"""Seconds to store and announce the ends of abandoned runs: 1 to 10, or a quarter of Serve's timeout."""


def find_timeout_s() -> float | None:
    """Return Serve's shutdown timeout for this replica, or None if it is not being removed. Serve notifies
    the replica too late, so an internal object (`ray/serve/_private/replica.py`, Ray 2.60) is read.
    """
    here = cast(Any, global_worker)
    replica = getattr(here.actors.get(here.actor_id), "_replica_impl", None)
    if not getattr(replica, "_shutting_down", False):
        return None
    return float(getattr(replica, "_deployment_config").graceful_shutdown_timeout_s)  # noqa: B009 (Serve's own)


def timeout_s(drain_s: float) -> float:
    """Return Serve's shutdown timeout for draining `drain_s` seconds before runs are abandoned."""
    return drain_s + min(MAX_MARGIN_S, max(MIN_MARGIN_S, drain_s * MARGIN / (1 - MARGIN)))


def leaves_after_s(timeout_s: float) -> float:
    """Return for how many seconds a replica may drain if Serve's shutdown timeout is `timeout_s`."""
    return max(0.0, timeout_s - min(MAX_MARGIN_S, max(MIN_MARGIN_S, MARGIN * timeout_s)))


async def leave_in_time(leave: Callable[[], None]) -> None:
    """Call `leave`, which abandons the runs, repeatedly once Serve removes this replica and its time is
    almost up.
    """
    while (shutdown_s := find_timeout_s()) is None:  # noqa: ASYNC110 (Serve sends no event)
        await asyncio.sleep(POLL_INTERVAL_S)
    await asyncio.sleep(leaves_after_s(shutdown_s))
    while True:
        leave()
        await asyncio.sleep(POLL_INTERVAL_S)
