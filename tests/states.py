"""Waiting for states, not for seconds."""

import asyncio
from collections.abc import Callable


async def until(
    true: Callable[[], object], what: str | Callable[[], str] = "", within_s: float = 60.0
) -> None:
    """Return once `true()` holds; fail where it never does, and say `what` would have been."""
    try:
        async with asyncio.timeout(within_s):
            while not true():
                await asyncio.sleep(0.001)
    except TimeoutError:
        raise AssertionError(f"never came true: {(what() if callable(what) else what) or true}") from None
