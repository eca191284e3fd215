"""Limits for how long a plugin may be silent. They come from the settings, or apply while a fallback is free."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from conductor.model.call import Call
from conductor.model.reply import Delta, Reply
from conductor.model.worker import Worker
from serving.workers.patience import Patience
from serving.workers.stall_timer import StallTimer


class Timed:
    """Wrapper whose calls fail if the worker is silent for longer than `patience` allows.

    Engines and API workers do this on their own.
    """

    def __init__(self, worker: Worker, patience: Patience) -> None:
        self.name, self._worker, self._patience = worker.name, worker, patience

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """Open `call` as `Worker.open` does.

        Raises:
            WorkerUnavailable: the worker failed, or it was silent for too long. Its call is then closed.
        """
        timer = self._patience.with_plugin(self.name, call)
        async with AsyncExitStack() as opened:
            reply = await timer.wait(opened.enter_async_context(self._worker.open(call)))
            timer.hear()
            reply.deltas = await opened.enter_async_context(aclosing(_with_timer(reply.deltas, timer)))
            yield reply


async def _with_timer(deltas: AsyncGenerator[Delta], timer: StallTimer) -> AsyncGenerator[Delta]:
    async with aclosing(deltas):
        while (delta := await timer.next(deltas)) is not None:
            timer.hear(is_last=delta.finish is not None)
            yield delta
