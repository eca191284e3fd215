"""The same call again, where it failed before its first token and may succeed."""

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_random_exponential,
)

from conductor.errors import WorkerBusy, WorkerError
from conductor.worker import Attempt, Call, Reply, Worker


class Retrying:
    """`worker`, asked up to `attempts` times with growing, jittered waits.

    A server's `Retry-After` is honoured: never sooner, and where it is longer than `longest_wait_s` not at all, so that
    another worker can be tried instead. The SDK clients themselves never retry.
    """

    def __init__(self, worker: Worker, attempts: int, first_wait_s: float, longest_wait_s: float) -> None:
        self._worker, self._attempts, self._longest_wait_s = worker, attempts, longest_wait_s
        self._jittered = wait_random_exponential(multiplier=first_wait_s, max=longest_wait_s)

    @property
    def name(self) -> str:
        """See `Worker.name`."""
        return self._worker.name

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; what failed on the way is in `attempts` of the reply, or of the error."""
        async with AsyncExitStack() as opened:
            yield await self._opened(opened, call)

    async def _opened(self, opened: AsyncExitStack, call: Call) -> Reply:
        failed: list[Attempt] = []

        def note(state: RetryCallState) -> None:
            error, action = _error(state), state.next_action
            waited_s = action.sleep if action else 0.0
            failed.append(Attempt(self.name, type(error).__name__, str(error), waited_s))

        retrying = AsyncRetrying(
            stop=stop_after_attempt(self._attempts), wait=self._wait_s, retry=retry_if_exception(self._may_help),
            before_sleep=note, reraise=True,
        )  # fmt: skip
        try:
            async for attempt in retrying:
                with attempt:
                    number = attempt.retry_state.attempt_number
                    reply = await opened.enter_async_context(self._worker.open(replace(call, attempt=number)))
                    reply.attempts = (*failed, *reply.attempts)
                    return reply
        except WorkerError as exc:
            exc.attempts = (*failed, *exc.attempts)
            raise
        raise AssertionError("the loop ends with a reply or an error")

    def _may_help(self, error: BaseException) -> bool:
        if isinstance(error, WorkerBusy) and (error.retry_after_s or 0.0) > self._longest_wait_s:
            return False
        return isinstance(error, WorkerError) and error.retryable

    def _wait_s(self, state: RetryCallState) -> float:
        error = _error(state)
        told_s = (error.retry_after_s or 0.0) if isinstance(error, WorkerBusy) else 0.0
        return max(told_s, self._jittered(state))


def _error(state: RetryCallState) -> BaseException | None:
    return state.outcome.exception() if state.outcome else None
