"""Load shedding: a router that has more to do than its core can do refuses what comes, before anything is looked up for it.

So does one that has nearly as many requests open as Ray Serve gives it (`OpenRequests`). An actor of Serve's has `max_ongoing_requests` places
for calls, and its own health check takes one of them: a router without a free one is believed dead after 90 s, and ended.

Each request that asks for work waits for turns of the event loop first. Where each of these takes long, thousands of others wait for
theirs, and everything that needs many turns, the answers and the look-up of a key, would come after its client's patience.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from conductor.errors import Overloaded
from serving.api.authentication import ALIVE, READY
from serving.api.request import HEADER
from serving.api.respond import failure
from serving.edge.waiting import WaitingRoom

logger = logging.getLogger("podium")

TURNS, LONG_S, SHORT_S = 4, 0.25, 0.01
"""A request is let in after a turn that is shorter than `SHORT_S`. It is refused where so many are longer, and without the longest of
them `LONG_S` on average: a burst makes one turn long, and of thousands of requests that are in step some turns are short.
"""
OPEN = 15 / 16
"""Of `router.max_ongoing_requests`, for all but probes."""
PROBES = (ALIVE, READY)
LOG_EVERY_S = 10.0
MAX_ONGOING, RETRY_AFTER_S = "router.max_ongoing_requests", 2.0
TOO_MANY = f"This server has as many requests open as it takes at once ({MAX_ONGOING}). Try again soon."
IDEMPOTENCY_KEY = HEADER.lower().encode()
"""Of a request that may join a run which has its place."""


class OpenRequests:
    """Bounds how many requests are open in `app`, those whose bodies are not whole yet among them. These make room for others.

    Args:
        app: what is behind.
        room: where requests wait for their bodies.
        max_ongoing: how many requests Ray Serve gives this router at once.
    """

    def __init__(self, app: ASGIApp, room: WaitingRoom, max_ongoing: Callable[[], int]) -> None:
        self._app, self._room, self._max_ongoing, self._n_open = app, room, max_ongoing, 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] in PROBES:
            return await self._app(scope, receive, send)
        most = self._max_ongoing()
        if self._n_open + 1 > OPEN * most and not (self._n_open < most and self._room.evict_one()):
            error = Overloaded(TOO_MANY, param=MAX_ONGOING, retry_after_s=RETRY_AFTER_S)
            return await failure(Request(scope), error)(scope, receive, send)
        self._n_open += 1
        try:
            return await self._app(scope, receive, send)
        finally:
            self._n_open -= 1


class LoadShedding:
    """Guards `app`.

    Args:
        app: what is behind.
        paths: `POST` to one of these asks for a run.
        check_places: raises `Overloaded` where no further run is taken.
    """

    def __init__(self, app: ASGIApp, paths: Collection[str], check_places: Callable[[], None]) -> None:
        self._app, self._paths, self._check_places = app, paths, check_places
        self._n_refused, self._logged_s = 0, float("-inf")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._paths:
            try:
                if not any(name == IDEMPOTENCY_KEY for name, _ in scope["headers"]):
                    self._check_places()
                await self._check_turns()
            except Overloaded as exc:
                return await failure(Request(scope), exc)(scope, receive, send)
        return await self._app(scope, receive, send)

    async def _check_turns(self) -> None:
        if await _falls_behind():
            self._n_refused += 1
            self._log()
            raise Overloaded("This server has more to do at the moment than it can. Try again soon.")

    def _log(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if now_s - self._logged_s > LOG_EVERY_S:
            message = (
                "turns of the event loop are more than %g s of work: %d requests were refused since the start"
            )
            logger.warning(message, LONG_S, self._n_refused)
            self._logged_s = now_s


async def _falls_behind() -> bool:
    """Whether everything that is ready is much work, again and again. On a loop that keeps up this takes one turn. What is
    counted is this thread's work, and not the time that other programs have the core.
    """
    turns_s = list[float]()
    for _ in range(TURNS):
        began_s = time.thread_time()
        await asyncio.sleep(0)
        turns_s.append(time.thread_time() - began_s)
        if turns_s[-1] < SHORT_S:
            return False
    return sum(turns_s) - max(turns_s) > LONG_S * (TURNS - 1)
