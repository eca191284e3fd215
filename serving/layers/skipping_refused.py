"""Not the same worker again, where it has refused in this run."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from conductor.errors import WorkerRefused
from conductor.model.call import Call
from conductor.model.reply import Reply
from serving.layers.layer import Layer


class SkippingRefused(Layer):
    """`worker`, which is asked no more in a run once it has refused a call of it. Calls that are open by
    then go on.
    """

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`.

        Raises:
            WorkerRefused: also without asking.
        """
        refusals = call.refusals
        if refusals is not None and (earlier := refusals.earlier(self.name, call.site.operation)):
            raise earlier
        try:
            async with self._worker.open(call) as reply:
                yield reply
        except WorkerRefused as exc:
            if refusals is not None:
                refusals.add(self.name, call.site.operation, exc)
            raise
