"""Load shedding: a router that has more work than its core can do refuses requests before it looks anything up for them.

It also refuses if nearly as many requests are open as Ray Serve gives it. An actor of Serve has `max_ongoing_requests` places
for calls, and its own health check takes one of them: a router without a free place counts as dead after 90 s, and is ended.

Each request that asks for work waits for turns of the event loop first. If each turn takes long, thousands of others wait for
theirs, and everything that needs many turns, such as answers and the look-up of a key, would outlast its client's patience.
"""

import asyncio
import logging
import time

from conductor.errors import Overloaded
from serving.edge.waiting import WaitingRoom

logger = logging.getLogger("podium")

ALIVE, READY = "/healthz", "/readyz"
PROBES = (ALIVE, READY)
"""Never refused for load."""
TURNS, LONG_S, SHORT_S = 4, 0.25, 0.01
"""A request is admitted after a turn that is shorter than `SHORT_S`. It is refused after `TURNS` longer turns, if they take
`LONG_S` on average without the longest: a burst makes one turn long, and of thousands of requests in step some turns are short.
"""
OPEN = 15 / 16
"""Part of `router.max_ongoing_requests` that may be open, probes aside."""
LOG_EVERY_S = 10.0
MAX_ONGOING, OPEN_RETRY_S = "router.max_ongoing_requests", 2.0
TOO_MANY = f"This server has as many requests open as it takes at once ({MAX_ONGOING}). Try again soon."
BEHIND = "This server has more to do at the moment than it can. Try again soon."


class SparseWarning:
    """Warns of many events in one line: an attack must not fill the disk.

    Args:
        text: of the warning, with places for what `log` is given.
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
    """Bound how many requests are open, those whose bodies are not whole among them. These make room for others.

    Raises:
        Overloaded: too many are, and none of them can make room.
    """
    if n_open + 1 > OPEN * most and not (n_open < most and room.evict_one()):
        raise Overloaded(TOO_MANY, param=MAX_ONGOING, retry_after_s=OPEN_RETRY_S)


async def falls_behind() -> bool:
    """Return whether everything that is ready is much work, again and again. On a loop that keeps up this takes one turn. It
    counts the work of this thread, and not the time for which other programs have the core.
    """
    turns_s = list[float]()
    for _ in range(TURNS):
        began_s = time.thread_time()
        await asyncio.sleep(0)
        turns_s.append(time.thread_time() - began_s)
        if turns_s[-1] < SHORT_S:
            return False
    return sum(turns_s) - max(turns_s) > LONG_S * (TURNS - 1)
