"""Output limits for workers that do not apply them on their own, such as plugins."""

from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.plan.prompt_parts import with_stable_system
from serving.workers.output_limit import OutputMeter, within_limit


class Bounded:
    """Wrapper that cuts off a worker's answers at the call's output limit.

    It also removes volatile lines, which a client changes with each request, from the prompts. API workers do
    both on their own.
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
