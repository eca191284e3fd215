"""An end for the answers of workers of one's own that pass the limit their call has set."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.plan.marks import with_stable_system
from serving.workers.output_limit import OutputMeter, within_limit


class Bounded:
    """`worker`, cut off where it says more than was asked and held for, and without a client's volatile lines. Providers'
    workers see to both themselves.
    """

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`."""
        call = replace(call, messages=tuple(with_stable_system(call.messages)))
        async with (
            self._worker.open(call) as reply,
            aclosing(within_limit(reply.deltas, OutputMeter(call))) as deltas,
        ):
            reply.deltas = deltas
            yield reply
