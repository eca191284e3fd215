"""Waiting for a state instead of for a time, and measuring CPU time instead of duration."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable


async def until(
    true: Callable[[], object],
    what: str | Callable[[], str] = "",
    within_s: float = 60.0,
    every_s: float = 0.001,
) -> None:
    """Return once `true()` holds. Fail with `what` if it does not within `within_s`; look again every `every_s`."""
    try:
        async with asyncio.timeout(within_s):
            while not true():
                await asyncio.sleep(every_s)
    except TimeoutError:
        raise AssertionError(f"never came true: {(what() if callable(what) else what) or true}") from None


async def least_cpu_s(act: Callable[[], Awaitable[None]], enough_s: float) -> float:
    """Return the least CPU time of this thread that `act` took in up to three tries, in seconds. Stop below `enough_s`.

    Other processes make CPU time longer, because they replace what is in the processor's caches.
    """
    least_s = math.inf
    for _ in range(3):
        began_s = time.thread_time()
        await act()
        least_s = min(least_s, time.thread_time() - began_s)
        if least_s < enough_s:
            break
    return least_s
