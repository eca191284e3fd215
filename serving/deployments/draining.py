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
"""Seconds that are reserved to store and announce the end of each abandoned run: a quarter of Serve's
timeout, but at least 1 and at most 10.
"""


def find_timeout_s() -> float | None:
    """Return Serve's shutdown timeout for this replica in seconds, or None if it is not being removed.

    Serve notifies the replica's own code only after the last request has ended, so the timeout is read
    from an internal object of Serve (`ray/serve/_private/replica.py`, Ray 2.60). If that object is missing,
    the result is None.
    """
    here = cast(Any, global_worker)
    replica = getattr(here.actors.get(here.actor_id), "_replica_impl", None)
    if not getattr(replica, "_shutting_down", False):
        return None
    return float(getattr(replica, "_deployment_config").graceful_shutdown_timeout_s)  # noqa: B009 (Serve's own)


def timeout_s(drain_s: float) -> float:
    """Return the shutdown timeout for Serve that lets a replica drain for `drain_s` seconds before it
    abandons runs.
    """
    return drain_s + min(MAX_MARGIN_S, max(MIN_MARGIN_S, drain_s * MARGIN / (1 - MARGIN)))


def leaves_after_s(timeout_s: float) -> float:
    """Return for how many seconds a replica may drain if Serve's shutdown timeout is `timeout_s`."""
    return max(0.0, timeout_s - min(MAX_MARGIN_S, max(MIN_MARGIN_S, MARGIN * timeout_s)))


async def leave_in_time(leave: Callable[[], None]) -> None:
    """Wait until Serve removes this replica and its time is almost up, and then call `leave` repeatedly, which
    abandons the remaining runs.

    One call is not enough, because a request may still arrive after it.
    """
    while (shutdown_s := find_timeout_s()) is None:  # noqa: ASYNC110 (Serve sends no event)
        await asyncio.sleep(POLL_INTERVAL_S)
    await asyncio.sleep(leaves_after_s(shutdown_s))
    while True:
        leave()
        await asyncio.sleep(POLL_INTERVAL_S)
