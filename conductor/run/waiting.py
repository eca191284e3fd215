"""Helpers that wait for tasks to end."""

import asyncio
from collections.abc import Collection
from contextlib import suppress
from typing import Any


async def wait_until_done(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until `tasks` have ended, even if this task is cancelled meanwhile: they may be closing calls.
    Raise the cancellation afterwards.
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
    """Cancel a task that never ends by itself, and wait until it has ended. Raise its error, if any. Do
    nothing for None.
    """
    if task is not None:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
