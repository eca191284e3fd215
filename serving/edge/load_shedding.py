"""Load shedding: an overloaded router rejects requests before it looks anything up for them.

It also rejects requests shortly before Ray Serve's limit of open ones. A Serve actor has
`max_ongoing_requests` places for calls, and its own health check needs one. A router without a free place
counts as dead after 90 s and is stopped.

A request for a run first waits for a few turns of the event loop. If each turn takes long, thousands of
requests are waiting, and everything that needs many turns, such as answers and key lookups, would exceed its
client's timeout.
"""

import asyncio
import logging
import time

from conductor.errors import Overloaded
from serving.edge.waiting import WaitingRoom

logger = logging.getLogger("podium")

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
"""Paths that are never rejected for load."""
TURNS, LONG_S, SHORT_S = 4, 0.25, 0.01
"""A request is admitted after a turn shorter than `SHORT_S`. It is rejected after `TURNS` longer ones that
take `LONG_S` on average, not counting the longest. A burst makes one turn long, and even among thousands of
requests some turns are short.
"""
OPEN = 15 / 16
"""Part of `router.max_ongoing_requests` that may be open, not counting probes."""
LOG_EVERY_S = 10.0
MAX_ONGOING, OPEN_RETRY_S = "router.max_ongoing_requests", 2.0
TOO_MANY = f"This server has reached its limit of open requests ({MAX_ONGOING}). Try again soon."
BEHIND = "This server is overloaded. Try again soon."


class SparseWarning:
    """Warning that is logged once for many events, so that an attack cannot fill the disk.

    Args:
        text: the warning, with placeholders for the arguments of `log`.
    """

    def __init__(self, text: str) -> None:
        self._text, self._logged_s = text, float("-inf")

    def log(self, *facts: object) -> bool:
        """Log the warning, unless one was logged within `LOG_EVERY_S`. Return whether it was logged."""
        now_s = time.monotonic()
        if now_s - self._logged_s <= LOG_EVERY_S:
            return False
        logger.warning(self._text, *facts)
        self._logged_s = now_s
        return True


def check_open(n_open: int, most: int, room: WaitingRoom) -> None:
    """Check the number of open requests. If it is too high, evict one whose body is incomplete.

    Raises:
        Overloaded: too many requests are open, and none of them can be evicted.
    """
    if n_open + 1 > OPEN * most and not (n_open < most and room.evict_one()):
        raise Overloaded(TOO_MANY, param=MAX_ONGOING, retry_after_s=OPEN_RETRY_S)


async def falls_behind() -> bool:
    """Return whether the event loop is overloaded, which takes only one turn if it is not.

    It measures the work of this thread, not the time in which other programs use the core.
    """
    turns_s = list[float]()
    for _ in range(TURNS):
        began_s = time.thread_time()
        await asyncio.sleep(0)
        turns_s.append(time.thread_time() - began_s)
        if turns_s[-1] < SHORT_S:
            return False
    return sum(turns_s) - max(turns_s) > LONG_S * (TURNS - 1)
