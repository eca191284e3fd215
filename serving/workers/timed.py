"""An end for the silence of workers of one's own, where the settings set one or another worker is free."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager

from conductor.model.call import Call
from conductor.model.reply import Delta, Reply
from conductor.model.worker import Worker
from serving.workers.patience import Patience
from serving.workers.stall_timer import StallTimer


class Timed:
    """`worker`, given up where it is silent for longer than `patience`. Engines and providers' workers see to it
    themselves.
    """

    def __init__(self, worker: Worker, patience: Patience) -> None:
        self.name, self._worker, self._patience = worker.name, worker, patience

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerUnavailable: also where it was silent for too long; its call is closed then.
        """
        timer = self._patience.with_anyone(self.name, call)
        async with AsyncExitStack() as opened:
            reply = await timer.wait(opened.enter_async_context(self._worker.open(call)))
            timer.hear()
            reply.deltas = await opened.enter_async_context(aclosing(_heard(reply.deltas, timer)))
            yield reply


async def _heard(deltas: AsyncGenerator[Delta], timer: StallTimer) -> AsyncGenerator[Delta]:
    async with aclosing(deltas):
        while (delta := await timer.next(deltas)) is not None:
            timer.hear(is_last=delta.finish is not None)
            yield delta
