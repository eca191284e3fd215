"""Waiting for tasks to end. Knows nothing of runs."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any


async def wait_until_done(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until `tasks` have ended, also while we are cancelled ourselves, as a `TaskGroup` does: they may
    be closing calls.
    """
    cancelled: asyncio.CancelledError | None = None
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled:
        raise cancelled


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task that would go on for ever, and wait until it has ended; None: there is none. Raises what it raised."""
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
