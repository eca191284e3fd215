"""A call that is opened, read and closed in a task of its own, so that it can begin before it has a reader, or be given up
for another: what a worker's stream keeps between its pieces (a timeout, a context variable) belongs to the task that
began it. Knows neither runs nor what is paid.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from conductor.errors import WorkerUnavailable
from conductor.model.reply import Delta, Reply
from conductor.run.waiting import wait_until_done


class CallTask:
    """One call, open until it is left.

    Args:
        opening: entered at the first token, as `Worker.open`; it is begun at once.
        room: how many pieces may wait for their reader.
    """

    def __init__(self, opening: AbstractAsyncContextManager[Reply], room: int = 1) -> None:
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Reply] = loop.create_future()
        """The reply, or why there is none."""
        self._left: asyncio.Future[None] = loop.create_future()
        self._pieces = asyncio.Queue[Delta | Exception | None](room)
        self._has_all = False
        self._told: Exception | None = None
        """What went wrong after the first token, once its reader knows."""
        self._task = asyncio.create_task(self._hold_open(opening))
        self._task.add_done_callback(_look_at)
        self.opened.add_done_callback(_look_at)

    @property
    def has_ended(self) -> bool:
        """Whether it has spoken or failed."""
        return self.opened.done()

    @property
    def error(self) -> BaseException | None:
        """Why it will never speak; None: it has, or still may."""
        if not self.opened.done():
            return None
        return asyncio.CancelledError() if self.opened.cancelled() else self.opened.exception()

    @property
    def reply(self) -> Reply | None:
        """What it says, once it has spoken."""
        return self.opened.result() if self.opened.done() and self.error is None else None

    @property
    def failure(self) -> Exception | None:
        """What went wrong in it, before its first token or after, as far as that is known once it is left."""
        ended = self._task.done() and not self._task.cancelled()
        failure = self._task.exception() if ended else None
        return failure if isinstance(failure, Exception) else None

    @asynccontextmanager
    async def read(self) -> AsyncGenerator[Reply]:
        """Its reply once the first token is there; left with the block, so once only.

        Raises:
            WorkerError, BudgetExceeded: whatever opening it raised.
        """
        try:
            await asyncio.wait([self.opened])  # unlike awaiting it, this does not cancel it with us
            yield self.opened.result()
        except BaseException as exc:
            await self.leave(exc)
            raise
        else:
            await self.leave()

    async def leave(self, error: BaseException | None = None) -> None:
        """Nobody reads it any more, because of `error`, which its layers see. What has come by now is billed as its server
        said, and a whole answer counts as one. Closed once this returns.
        """
        while not self._pieces.empty():
            piece = self._pieces.get_nowait()
            if isinstance(piece, Delta):
                reply = self.opened.result()
                reply.count(piece)
                reply.finish = reply.finish or piece.finish
        if self._has_all and not self._left.done() and (error is None or isinstance(error, Exception)):
            self._left.set_exception(error) if error else self._left.set_result(None)
        else:
            self._task.cancel()
        await wait_until_done([self._task])
        if error is not None or self._task.cancelled():
            return
        if (
            failure := self._task.exception()
        ) is not None and failure is not self._told:  # which was forgiven
            raise failure

    async def _hold_open(self, opening: AbstractAsyncContextManager[Reply]) -> None:
        try:
            async with opening as reply:
                source, reply.deltas = reply.deltas, self._relay()
                self.opened.set_result(reply)
                async for delta in source:
                    await self._pieces.put(delta)
                self._has_all = True
                await self._pieces.put(None)
                await self._left
        except asyncio.CancelledError:
            self.opened.cancel()  # a worker that breaks off its own call
            if self.reply is not None and not (self._left.done() or self._task.cancelling()):
                message = f"{self.reply.worker} broke off its own call."
                await self._pieces.put(WorkerUnavailable(message, worker=self.reply.worker))
            raise
        except Exception as exc:
            if not self.opened.done():
                self.opened.set_exception(exc)
            elif not self._left.done():
                await self._pieces.put(exc)
            raise

    async def _relay(self) -> AsyncGenerator[Delta]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                self._told = piece
                raise piece
            yield piece


def _look_at(ended: "asyncio.Future[Reply] | asyncio.Task[None]") -> None:
    """Its error is somebody else's to raise."""
    if not ended.cancelled():
        ended.exception()
