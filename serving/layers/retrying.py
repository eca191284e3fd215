"""The same call again, where it failed before its first token and may succeed."""

import random
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import count
from math import inf

from conductor.errors import WorkerBusy, WorkerError
from conductor.model.failure import Attempt, Failure
from conductor.model.retries import call_again
from conductor.model.worker import Call, Reply, Worker


class Retrying:
    """`worker`, asked up to `attempts` times with growing, jittered waits.

    A server's `Retry-After` is honoured: never sooner, and where it is longer than `max_wait_s`, or than
    half of the time that the caller has left, not at all, so that another worker can be tried instead. The
    SDK clients themselves never retry.
    """

    def __init__(self, worker: Worker, attempts: int, first_wait_s: float, max_wait_s: float) -> None:
        self._worker, self._attempts, self._max_wait_s = worker, attempts, max_wait_s
        self._first_wait_s = first_wait_s

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; what failed on the way is in `attempts` of the reply, or of the error."""
        async with AsyncExitStack() as opened:
            yield await self._open_with_retries(opened, call)

    async def _open_with_retries(self, opened: AsyncExitStack, call: Call) -> Reply:
        failed: list[Attempt] = []
        for number in count(1):
            began_s = time.monotonic()
            try:
                site = replace(call.site, attempt=call.site.attempt + len(failed))
                reply = await opened.enter_async_context(self._worker.open(replace(call, site=site)))
            except WorkerError as exc:
                wait_s = self._wait_s(number, exc)
                if number == self._attempts or not self._may_help(exc) or wait_s >= _patience_s(call):
                    exc.attempts = (*failed, *exc.attempts)
                    raise
                took_s = time.monotonic() - began_s
                call = await call_again(call, exc, wait_s)
                lost = Attempt.of(self.name, Failure.of(exc), waited_s=wait_s, took_s=took_s)
                failed += [*exc.attempts, lost]
            else:
                reply.attempts = (*failed, *reply.attempts)
                return reply
        raise AssertionError("it is counted without end")

    def _may_help(self, error: WorkerError) -> bool:
        return error.retryable and _retry_after_s(error) <= self._max_wait_s

    def _wait_s(self, number: int, error: WorkerError) -> float:
        """Full jitter under a doubling bound
        (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
        """
        bound_s = min(self._max_wait_s, self._first_wait_s * 2 ** (number - 1))
        return max(_retry_after_s(error), random.uniform(0, bound_s))


def _patience_s(call: Call) -> float:
    """The longest wait: half of the time that the caller has left, so that the rest is enough for the call,
    or for a fallback.
    """
    return inf if call.deadline_at_s is None else (call.deadline_at_s - time.monotonic()) / 2


def _retry_after_s(error: WorkerError) -> float:
    """How long the server asked us to wait."""
    return (error.retry_after_s or 0.0) if isinstance(error, WorkerBusy) else 0.0
