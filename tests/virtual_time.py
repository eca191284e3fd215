"""Virtual time for the tests of code that waits: the event loop jumps to its next timer instead of sleeping until it.

looptime makes the jumps. Sockets of the loopback whose both ends are in the loop need no time: the kernel delivers
within `send`. Work in threads is waited for in real time while the loop's time stands still. PostgreSQL, other processes
and threads that start by themselves are unknown here, so their tests are marked `real_time`.
"""

import asyncio
import inspect
import math
import queue
import time
from collections.abc import Generator
from typing import Any
from weakref import WeakKeyDictionary

import aiosqlite.core
import anyio._backends._asyncio
import pytest
from looptime import LoopTimeEventLoop

from tests.clock import CLOCK

FOLDERS = ("tests/conductor", "tests/serving")
IDLE_TURNS = 5
"""Turns of the loop in which nothing happens, before time jumps."""
STILL_S = 0.5
"""How long time stands still for work in a thread, in real seconds."""
_SEEN_S = WeakKeyDictionary[asyncio.Future[Any], float]()
"""When work in threads was first waited for."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run coroutine tests of `FOLDERS` in virtual time, except those that need real time."""
    if (
        inspect.iscoroutinefunction(getattr(item, "obj", None))
        and item.nodeid.startswith(FOLDERS)
        and not item.get_closest_marker("real_time")
        and not _waits_for_a_server(item)
    ):
        item.add_marker(pytest.mark.looptime(start=CLOCK.monotonic, noop_cycles=IDLE_TURNS, resolution=1e-9))


def _waits_for_a_server(item: pytest.Item) -> bool:
    if {"postgres", "postgres_of_its_own", "redis_url"} & set(item.fixturenames):  # type: ignore[attr-defined]
        return True
    parameters = getattr(item, "callspec", None)
    return parameters is not None and bool(
        {"postgresql", "redis"} & set(map(str, parameters.params.values()))
    )


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Let `time` show the loop's time while a test runs in virtual time."""
    if pyfuncitem.get_closest_marker("looptime") is None:
        return (yield)
    CLOCK.follow(pyfuncitem.funcargs["event_loop_policy"].get_event_loop())
    try:
        return (yield)
    finally:
        CLOCK.loop = None


def _get(loop: Any, name: str) -> Any:
    """A private attribute of looptime's."""
    return getattr(loop, f"_LoopTimeEventLoop__{name}")


def _set(loop: Any, **values: Any) -> None:
    for name, value in values.items():
        setattr(loop, f"_LoopTimeEventLoop__{name}", value)


def _select(loop: Any, timeout: float | None) -> list[Any]:
    """Let time stand still while threads work, for `STILL_S` of each piece of work; then it goes on at its real pace."""
    working = [] if timeout == 0 else [each for each in _get(loop, "sync_futures") if not each.done()]
    for each in working:
        _SEEN_S.setdefault(each, time.perf_counter())
    left_s = max((_SEEN_S[each] for each in working), default=-math.inf) + STILL_S - time.perf_counter()
    if left_s > 0 and (ready := _get(loop, "original_select")(left_s)):
        _set(loop, noop_limit=None, noop_cycle=None)
        return ready
    _set(loop, sync_ts=None)  # else it jumps over what the loop itself took since the newest step
    began, ready = _get(loop, "now"), _looptimes_select(loop, timeout)
    if _get(loop, "now") > began:
        _set(loop, now=_get(loop, "now") + 1)  # a timer is late, and never early by the rounding of a float
    return ready


def _note(future: asyncio.Future[Any]) -> None:
    """Tell the future's loop that another thread will set it."""
    if isinstance(loop := future.get_loop(), LoopTimeEventLoop):
        _get(loop, "sync_futures").add(future)


class _Work(queue.Queue[Any]):
    """Work for a library's own thread, SQLite's or AnyIO's."""

    def put_nowait(self, item: Any) -> None:
        for future in item or ():
            if isinstance(future, asyncio.Future):
                _note(future)
        super().put_nowait(item)


def _wrap_future(*args: Any, **named: Any) -> asyncio.Future[Any]:
    """Wrap a future of an executor's."""
    future = asyncio.futures.wrap_future(*args, **named)
    _note(future)
    return future


asyncio.wrap_future = _wrap_future  # type: ignore[assignment]
aiosqlite.core.SimpleQueue = _Work  # type: ignore[misc,assignment]
anyio._backends._asyncio.Queue = _Work  # type: ignore[misc,assignment]
_looptimes_select = _get(LoopTimeEventLoop, "replaced_select")
_set(LoopTimeEventLoop, replaced_select=_select)
