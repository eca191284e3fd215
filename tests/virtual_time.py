"""Virtual time: the event loop of a test jumps to its next timer instead of sleeping until it.

A test of `FOLDERS` runs in virtual time unless it is marked `real_time` or uses a server in another process, whose
fixture has `keeps_real_time`.
Import this module before any other: it replaces `time.monotonic`, `time.time` and `time.time_ns`, which some
functions keep as defaults of their parameters. `datetime.now` still returns real time.
"""

import asyncio
import collections
import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import aiosqlite.core
import anyio._backends._asyncio
import pytest

FOLDERS = ("tests/conductor", "tests/evaluation/backends", "tests/serving")
assert all((Path(__file__).parents[1] / each).exists() for each in FOLDERS), (
    "a folder of virtual time is gone"
)
MINUTE_NS = 60 * 10**9
IDLE_TURNS = 5
"""Idle turns of the loop before time jumps."""
ROUNDING_S = 1e-9
"""Seconds by which a timer is late, so that rounding never makes it early."""
STILL_S = 0.5
"""Real seconds for which time stands still while a thread works for the loop. Then it passes at its real pace."""
SLICE_S = 0.05
"""Steps in which time passes at its real pace. Threads see it pass."""
DELIVERIES = (aiosqlite.core.set_result, aiosqlite.core.set_exception)
"""Functions by which a SQLite thread gives its result to the loop."""
BUSY_S = 20
"""CPU seconds without an idle turn after which time jumps anyway. A task that never rests may wait for a timer."""
THREAD_S = 60
"""Real seconds for which a loop waits for threads before it closes."""

_monotonic, _time, _time_ns, _sleep = time.monotonic, time.time, time.time_ns, time.sleep
_is_virtual = False
"""True if the next loop uses virtual time."""
_loop: "VirtualTimeLoop | None" = None
"""Open loop with virtual time. `time` shows its time in all threads."""


class CarefulLoop(asyncio.SelectorEventLoop):
    """Event loop that closes only after SQLite's threads have delivered their results.

    A statement whose caller was cancelled still runs to its end. Its thread would find a closed loop, and pytest
    would fail whichever test runs then.
    """

    def __init__(self) -> None:
        super().__init__()
        self._owed = collections.deque[None]()
        """One element per statement that a thread has. Threads may change it at any time."""

    def owe(self) -> None:
        """Count one statement given to a thread."""
        self._owed.append(None)

    def call_soon_threadsafe(self, callback: Any, *args: Any, **named: Any) -> Any:
        """See `asyncio`. A delivered result of SQLite is no longer owed."""
        if callback in DELIVERIES:
            self._owed.pop()
        return super().call_soon_threadsafe(callback, *args, **named)

    def close(self) -> None:
        """Wait for the threads, then close.

        Raises:
            TimeoutError: a thread did not deliver.
        """
        latest_s = _monotonic() + THREAD_S
        while self._owed:
            if _monotonic() > latest_s:
                raise TimeoutError(
                    f"{len(self._owed)} statements of SQLite have not ended after {THREAD_S} s."
                )
            _sleep(0.001)
        super().close()


class VirtualTimeLoop(CarefulLoop):
    """Event loop whose time jumps to the next timer if nothing else can happen.

    Sockets with both ends in this loop need no time, because the kernel delivers within `send`.
    """

    def __init__(self, busy_s: float = BUSY_S) -> None:
        super().__init__()
        self._busy_s = busy_s
        self._now_s = _monotonic()
        # Begin at the start of a minute, so that a short test never meets the end of a rate limit's minute.
        self._epoch_ns = -(-_time_ns() // MINUTE_NS) * MINUTE_NS - int(self._now_s * 1e9)
        self._newest_ns = 0
        self._began_s = WeakKeyDictionary[asyncio.Future[Any], float]()
        self._idle_turns = 0
        self._busy_since_s = time.thread_time()
        self._poll = self._selector.select  # type: ignore[attr-defined]
        self._selector.select = self._select  # type: ignore[attr-defined]
        global _loop
        _loop = self

    def close(self) -> None:
        """Close the loop. `time` shows real time again."""
        global _loop
        if _loop is self:
            _loop = None
        super().close()

    def time(self) -> float:
        """Return the virtual time in seconds."""
        return self._now_s

    def time_ns(self) -> int:
        """Return the time of day. Each read is later than the one before, so that no two runs begin at the same instant."""
        self._newest_ns = max(self._newest_ns + 1000, self._epoch_ns + int(self._now_s * 1e9))
        return self._newest_ns

    def work_in_thread(self, future: asyncio.Future[Any]) -> None:
        """Do not jump until another thread has set `future`."""
        self._began_s[future] = time.perf_counter()

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Run `func` in a thread, without jumps meanwhile."""
        future = super().run_in_executor(executor, func, *args)
        self.work_in_thread(future)
        return future

    def _select(self, timeout: float | None) -> list[Any]:
        ready = self._poll(0)
        if ready or timeout == 0:
            self._idle_turns = 0
            self._jump_if_always_busy()
            return ready
        self._busy_since_s = time.thread_time()
        began_s = max((began for future, began in self._began_s.items() if not future.done()), default=None)
        if began_s is not None:
            return self._wait(timeout, began_s + STILL_S - time.perf_counter())
        if timeout is None:
            return self._poll(None)
        self._idle_turns += 1
        if self._idle_turns > IDLE_TURNS:
            self._idle_turns = 0
            self._now_s += timeout + ROUNDING_S
        return []

    def _jump_if_always_busy(self) -> None:
        if self._scheduled and time.thread_time() - self._busy_since_s > self._busy_s:  # type: ignore[attr-defined]
            self._now_s = max(self._now_s, self._scheduled[0].when() + ROUNDING_S)  # type: ignore[attr-defined]

    def _wait(self, timeout: float | None, still_s: float) -> list[Any]:
        if still_s > 0:
            return self._poll(still_s)
        step_s = min(SLICE_S, SLICE_S if timeout is None else timeout)
        began_s = time.perf_counter()
        ready = self._poll(step_s)
        self._now_s += time.perf_counter() - began_s if ready else step_s + ROUNDING_S
        return ready


class _Work(queue.Queue[Any]):
    """Work for a library's own thread."""

    def put_nowait(self, item: Any) -> None:
        for each in item or ():
            if isinstance(each, asyncio.Future) and isinstance(loop := each.get_loop(), VirtualTimeLoop):
                loop.work_in_thread(each)
        super().put_nowait(item)


class _Statements(_Work):
    """Work for a thread of SQLite: pairs of a future, or None, and a function."""

    def put_nowait(self, item: Any) -> None:
        if item[0] and isinstance(loop := item[0].get_loop(), CarefulLoop):
            loop.owe()
        super().put_nowait(item)


def _wrap_future(*args: Any, **named: Any) -> asyncio.Future[Any]:
    future = asyncio.futures.wrap_future(*args, **named)
    if isinstance(loop := future.get_loop(), VirtualTimeLoop):
        loop.work_in_thread(future)
    return future


def _new_loop() -> asyncio.AbstractEventLoop:
    return VirtualTimeLoop() if _is_virtual else CarefulLoop()


aiosqlite.core.SimpleQueue = _Statements  # type: ignore[misc,assignment]
anyio._backends._asyncio.Queue = _Work  # type: ignore[misc,assignment]
asyncio.wrap_future = _wrap_future  # type: ignore[assignment]
time.monotonic = lambda: _loop.time() if _loop else _monotonic()
time.time_ns = lambda: _loop.time_ns() if _loop else _time_ns()
time.time = lambda: _loop.time_ns() / 1e9 if _loop else _time()


def keeps_real_time(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the function of a fixture that starts a process which knows only real time."""
    function.keeps_real_time = True  # type: ignore[attr-defined]
    return function


def pytest_asyncio_loop_factories() -> dict[str, Any]:
    """Let pytest-asyncio make each test's loop here."""
    return {"loop": _new_loop}


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Decide in which time the test runs, before its loop is made."""
    global _is_virtual
    fixtures = item._fixtureinfo.name2fixturedefs.values()  # type: ignore[attr-defined]
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    _is_virtual = not (
        not item.nodeid.startswith(FOLDERS)
        or item.get_closest_marker("real_time")
        or any(hasattr(each[-1].func, "keeps_real_time") for each in fixtures)
        or {"postgresql", "redis"} & {each for each in parameters if isinstance(each, str)}
    )
