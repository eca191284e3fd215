"""Virtual time for the tests of code that waits: the event loop jumps to its next timer instead of sleeping until it.

looptime makes the jumps, and waits in real time for work in threads. PostgreSQL, other processes and threads
that start by themselves are unknown to it, so their tests are marked `real_time`.
"""

import asyncio
import inspect
import itertools
import queue
import time
from collections.abc import Callable, Generator
from typing import Any

import aiosqlite.core
import pytest
from looptime import LoopTimeEventLoop

FOLDERS = ("tests/conductor", "tests/serving")
IDLE_TURNS = 5
"""Turns of the loop in which nothing happens, before time jumps."""


def pytest_itemcollected(item: pytest.Item) -> None:
    """Run coroutine tests of `FOLDERS` in virtual time, except those that need real time."""
    if (
        inspect.iscoroutinefunction(getattr(item, "obj", None))
        and item.nodeid.startswith(FOLDERS)
        and not item.get_closest_marker("real_time")
        and not _waits_for_a_server(item)
    ):
        item.add_marker(pytest.mark.looptime(start=time.monotonic, noop_cycles=IDLE_TURNS))


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
    loop = pyfuncitem.funcargs["event_loop_policy"].get_event_loop()
    since_epoch_s = time.time() - loop.time()
    reads = itertools.count()

    def time_ns() -> int:
        """Return the time of day, one microsecond later at each read: no two runs begin at the same instant."""
        return int((loop.time() + since_epoch_s) * 1e9) + next(reads) * 1000

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time, "monotonic", loop.time)
        patch.setattr(time, "time_ns", time_ns)
        patch.setattr(time, "time", lambda: time_ns() / 1e9)
        return (yield)


class _Statements(queue.SimpleQueue[tuple[asyncio.Future[Any] | None, Callable[[], Any]]]):
    """Statements for SQLite's thread. Time does not jump while one of them runs."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        if item[0] is not None and isinstance(loop := item[0].get_loop(), LoopTimeEventLoop):
            loop._LoopTimeEventLoop__sync_futures.add(item[0])  # type: ignore[attr-defined]
        super().put_nowait(item)


aiosqlite.core.SimpleQueue = _Statements  # type: ignore[misc,assignment]
