"""Another worker instead, where one fails before its first token."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager

from conductor.errors import WorkerError
from conductor.worker import Attempt, Call, Reply, Worker


class FailingOver:
    """`workers` in turn, the first one's name for all of them. Any `WorkerError` moves on: a bad key fails over like an outage."""

    def __init__(self, workers: Sequence[Worker]) -> None:
        self._workers = workers

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._workers[0].name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; `worker` of the reply says who answers, `attempts` why it is not the first."""
        failed: list[Attempt] = []
        async with AsyncExitStack() as opened:
            for worker in self._workers:
                try:
                    reply = await opened.enter_async_context(worker.open(call))
                    break
                except WorkerError as exc:
                    attempt = Attempt(worker.name, type(exc).__name__, exc.message, 0.0, exc.detail)
                    failed += [*exc.attempts, attempt]
                    if worker is self._workers[-1]:
                        exc.attempts = tuple(failed[:-1])
                        raise
            else:
                raise AssertionError("there is at least one worker")
            reply.attempts = (*failed, *reply.attempts)
            yield reply
