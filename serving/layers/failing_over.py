"""Another worker instead, where one fails before its first token."""

import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from conductor.errors import WorkerError
from conductor.model.failure import Attempt, Failure
from conductor.model.retries import call_again
from conductor.model.worker import Call, Reply, Worker


class FailingOver:
    """`workers` in turn, the first one's name for all of them. Any `WorkerError` moves on: a bad key fails
    over like an outage.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        blind: Collection[str] = (),
        toolless: Collection[str] = (),
        pdfless: Collection[str] = (),
    ) -> None:
        """Knows who sees, who calls tools and who reads PDFs.

        Args:
            workers: in the order in which they are asked.
            blind: the names of those that see no pictures. After a first one that sees they are not asked
                about a picture.
            toolless: the names of those that call no tools. After a first one that does they are not offered
                any.
            pdfless: the names of those that read no PDFs; likewise.
        """
        self._workers = workers
        self._blind, self._toolless, self._pdfless = frozenset(blind), frozenset(toolless), frozenset(pdfless)

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._workers[0].name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; `worker` of the reply says who answers, `attempts` why it is not the first."""
        failed: list[Attempt] = []
        async with AsyncExitStack() as opened:
            line = self._line(call)
            for worker in line:
                began_s = time.monotonic()
                try:
                    site = replace(call.site, attempt=call.site.attempt + len(failed))
                    reply = await opened.enter_async_context(worker.open(replace(call, site=site)))
                    break
                except WorkerError as exc:
                    took_s = time.monotonic() - began_s
                    if worker is line[-1]:
                        exc.attempts = (*failed, *exc.attempts)
                        raise
                    call = await call_again(call, exc)
                    failed += [*exc.attempts, Attempt.of(worker.name, Failure.of(exc), took_s=took_s)]
            else:
                raise AssertionError("there is at least one worker")
            reply.attempts = (*failed, *reply.attempts)
            yield reply

    def _line(self, call: Call) -> Sequence[Worker]:
        """Who is asked, in order: only those whom the call's permit allows; only those who see, where the
        first one does and the call shows a picture; likewise for tools and PDFs.
        """
        if call.site.operation == "embeddings":
            return self._workers[:1]  # another model's vectors mean something else
        line = [worker for worker in self._workers if call.permit.allows(worker.name)]
        if call.tools and self.name not in self._toolless:
            line = [worker for worker in line if worker.name not in self._toolless]
        if self.name not in self._blind and any(message.has_image for message in call.messages):
            line = [worker for worker in line if worker.name not in self._blind]
        if self.name not in self._pdfless and any(message.has_pdf for message in call.messages):
            line = [worker for worker in line if worker.name not in self._pdfless]
        return line or self._workers[:1]  # who says that it may not be asked
