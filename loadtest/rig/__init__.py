"""Library that load tests, the bench, proofs and the siege share: servers, fake upstreams, clients and
measurements.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
Json = dict[str, Any]
T = TypeVar("T")


class RigError(Exception):
    """A measurement or a proof could not be run. The message says why."""


async def poll(
    read: Callable[[], Awaitable[T]],
    is_done: Callable[[T], object] = bool,
    *,
    within_s: float,
    every_s: float,
) -> T:
    """Call `read` until `is_done` accepts its result, for at most `within_s`. Return the last result."""
    ends_s = time.monotonic() + within_s
    while not is_done(result := await read()) and time.monotonic() < ends_s:
        await asyncio.sleep(every_s)
    return result
