"""Run scorers that may hang in separate processes that can be killed.

math-verify enforces its time limit with SIGALRM, which works only in the main thread of a process, and some
of reasoning-gym's scorers search for a long time. Each process therefore grades in its main thread. If a call
times out, its whole pool is killed, and the next call starts a new pool. If a scorer fails, the answer counts
as wrong, with a reason.
"""
# The types of math-verify and reasoning-gym are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownVariableType=false

import asyncio
import atexit
import resource
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from typing import Any
from weakref import WeakKeyDictionary

PROCESSES = 2
COMPARISON_S = 5
"""Timeout of one comparison inside math-verify, in seconds."""
CALL_S = 30.0
"""Timeout of a call in seconds. The first call also waits for the imports."""
MEMORY_BYTES = 4 * 1024**3


TRIES = 4
"""Maximum attempts of a call, whose process may be killed because of another call."""


class GradingPool:
    """Process pool that starts on first use, and again after it was killed."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None
        self._slots: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = WeakKeyDictionary()

    async def call(self, work: Callable[..., Any], *arguments: Any, timeout_s: float = CALL_S) -> Any:
        """Run `work(*arguments)` in a process. The timeout starts once one is free. A dead process is
        retried.
        """
        slots = self._slots.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(PROCESSES))
        async with slots:
            for n_left in reversed(range(TRIES)):
                pool = self._start()
                try:
                    return await asyncio.wait_for(
                        asyncio.wrap_future(pool.submit(work, *arguments)), timeout_s
                    )
                except TimeoutError:
                    self._end(pool)
                    raise
                except BrokenProcessPool:
                    self._end(pool)
                    if not n_left:
                        raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    def close(self) -> None:
        if self._pool is not None:
            self._end(self._pool)

    def _start(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(PROCESSES, get_context("spawn"), initializer=_limit_memory)
        return self._pool

    def _end(self, pool: ProcessPoolExecutor) -> None:
        """Kill the processes of `pool`. Waiting calls raise BrokenProcessPool, and the next starts a pool."""
        if pool is self._pool:
            self._pool = None
        processes: dict[int, BaseProcess] = getattr(pool, "_processes", None) or {}
        for process in list(processes.values()):
            process.kill()
        pool.shutdown(wait=False)


POOL = GradingPool()
atexit.register(POOL.close)


async def math_verify_grade(expected: str, answer: str) -> tuple[bool, str | None, str]:
    """Return whether the answer equals the expected one, how it was parsed, and why it is wrong if it is."""
    try:
        return await POOL.call(_math_verify, expected, answer)
    except (TimeoutError, BrokenProcessPool) as exc:
        return False, answer, f"the comparison did not finish: {type(exc).__name__}"


async def reasoning_gym_score(
    dataset: str, answer: str, entry: Mapping[str, Any]
) -> tuple[float | None, str]:
    """Return the data set's score from 0 to 1, or None and a reason if its scorer failed."""
    try:
        return await POOL.call(_reasoning_gym, dataset, answer, dict(entry))
    except (TimeoutError, BrokenProcessPool) as exc:
        return None, f"the scorer did not finish: {type(exc).__name__}"


def _limit_memory() -> None:
    """Limit the memory of this process, because answers are untrusted."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _math_verify(expected: str, answer: str) -> tuple[bool, str | None, str]:
    from math_verify import parse, verify

    gold: list[Any] = parse(expected, parsing_timeout=COMPARISON_S) or parse(
        f"${expected}$", parsing_timeout=COMPARISON_S
    )
    parsed: list[Any] = parse(answer, parsing_timeout=COMPARISON_S) or parse(
        f"${answer}$", parsing_timeout=COMPARISON_S
    )
    if not parsed:
        return False, None, "no mathematical expression was found in the text"
    right = bool(verify(gold, parsed, timeout_seconds=COMPARISON_S))
    return right, str(parsed[-1]), "" if right else "the answer is not equal to the expected answer"


def _reasoning_gym(dataset: str, answer: str, entry: dict[str, Any]) -> tuple[float | None, str]:
    from reasoning_gym import get_score_answer_fn

    try:
        score: Any = get_score_answer_fn(dataset)
        return float(score(answer, entry)), ""
    except Exception as exc:  # noqa: BLE001  (dozens of scorers, which raise anything)
        return None, f"the scorer failed: {type(exc).__name__}"
