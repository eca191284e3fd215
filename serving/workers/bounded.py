"""Output limits for plugins."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.plan.marks import with_stable_system
from serving.workers.output_limit import OutputMeter, within_limit


class Bounded:
    """Worker whose answers are cut off at the call's limit, and whose prompts lack the client's volatile lines.

    API workers do both themselves.
    """

    def __init__(self, worker: Worker) -> None:
        self.name, self._worker = worker.name, worker

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """Open `call` as `Worker.open` does."""
        call = replace(call, messages=tuple(with_stable_system(call.messages)))
        async with (
            self._worker.open(call) as reply,
            aclosing(within_limit(reply.deltas, OutputMeter(call))) as deltas,
        ):
            reply.deltas = deltas
            yield reply
