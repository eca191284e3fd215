"""Runs that outlive their clients, each in a task of its own; at the end of the process they are left to
another one.
"""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from functools import partial

from conductor.run.run import Run

logger = logging.getLogger("podium")


class KeptRuns:
    """The runs of one replica that outlive their clients; see `aclose`."""

    def __init__(self) -> None:
        self._tasks = dict[asyncio.Task[None], Run | None]()

    async def begin(self, opened: AbstractAsyncContextManager[Run], keep_s: float) -> Run:
        """Open a run and drive it to its end, for so long at most, whoever leaves. Who begins it owns its
        answer: close that when nobody reads it any more.

        Raises:
            PodiumError: it could not be opened.
        """
        ready: asyncio.Future[Run] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self._drive(opened, keep_s, ready), name="run kept")
        self._tasks[task] = None
        task.add_done_callback(partial(self._end, ready))
        try:
            return await asyncio.shield(ready)
        except asyncio.CancelledError:  # the client left: the run goes on
            ready.add_done_callback(_close_answer)
            raise

    async def aclose(self) -> None:
        """Leave every run to another process."""
        for task, run in list(self._tasks.items()):
            if run is not None:
                run.detach()
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _drive(
        self, opened: AbstractAsyncContextManager[Run], keep_s: float, ready: "asyncio.Future[Run]"
    ) -> None:
        task = asyncio.current_task()
        assert task is not None, "it is called in one"
        deadline = asyncio.timeout(keep_s)
        try:
            async with deadline, opened as run:
                self._tasks[task] = run
                ready.set_result(run)
                async for _ in run.subscribe():
                    pass
        except TimeoutError:
            if not deadline.expired():
                raise
            logger.warning("a run was ended that had gone on for %g s without its client", keep_s)

    def _end(self, ready: "asyncio.Future[Run]", task: "asyncio.Task[None]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if not ready.done():
            ready.set_exception(error or asyncio.CancelledError())
            ready.exception()
        elif error is not None:
            logger.error("a run that outlives its client ended", exc_info=error)


def _close_answer(ready: "asyncio.Future[Run]") -> None:
    if not ready.cancelled() and ready.exception() is None:
        ready.result().answer.close()
