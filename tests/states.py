"""Waiting for a state instead of for a time."""

import asyncio
from collections.abc import Callable


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
