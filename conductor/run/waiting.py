"""Helpers that wait for tasks to end."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any


async def wait_until_done(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until `tasks` have ended, even if this task is cancelled, because they may be closing calls.

    A cancellation is raised after they have ended.
    """
    cancelled: asyncio.CancelledError | None = None
    while pending := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(pending)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled:
        raise cancelled


async def end_task(task: asyncio.Task[None] | None) -> None:
    """Cancel a task that never ends by itself, wait until it has ended, and raise its error if it failed.

    Do nothing if `task` is None.
    """
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
