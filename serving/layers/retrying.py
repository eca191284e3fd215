"""The same call again, where it failed before its first token and may succeed.

An answer that ends well and says nothing is such a failure too, though it is paid: models end a turn at once now and
then, and say something when they are asked again.
"""

import random
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager, suppress
from itertools import count
from math import inf

from conductor.errors import LineTooLong, WorkerBusy, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.field_values import copy_with
from conductor.model.places import Places
from conductor.model.reply import Reply
from conductor.model.retries import call_again
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.layer import Layer
from serving.layers.retry_budget import RetryBudget
from serving.witnesses import party_of

QUICK_S = 1.0
"""If another worker is free to answer, a failed call is made again only if its failure and the wait for the next try
take less than this together, unless the server says when to come back."""


class Retrying(Layer):
    """`worker`, asked up to `attempts` times with growing, jittered waits.

    A server's `Retry-After` is honoured: never sooner, and where it is longer than `max_wait_s`, or than
    half of the time that the caller has left, not at all, so that another worker can be tried instead. The
    SDK clients themselves never retry. Where the worker has several places, the next one is asked first.

    For an answer without a word it is asked once more. The second one stands where nobody else is free to answer.

    While another worker is free to answer, only what failed quickly is made again soon, and a `Retry-After` is waited
    for up to `fallback_wait_s`: the client asked for this worker. All retries together take no more than their share of
    the calls.
    """

    def __init__(
        self,
        worker: Worker,
        attempts: int,
        first_wait_s: float,
        max_wait_s: float,
        budget: RetryBudget | None = None,
        health: WorkerHealth | None = None,
        fallback_wait_s: float = 0.0,
    ) -> None:
        """Knows when not to ask again.

        Args:
            worker: who is asked.
            attempts: the most tries of one call.
            first_wait_s: bound of the first wait.
            max_wait_s: bound of every wait.
            budget: of all its calls' retries; None: any number.
            health: of its newest calls.
            fallback_wait_s: the longest that one call waits for what servers ask, while a fallback could answer.
        """
        super().__init__(worker)
        self._fallback_wait_s = fallback_wait_s
        self._attempts, self._max_wait_s = attempts, max_wait_s
        self._first_wait_s, self._budget, self._health = first_wait_s, budget, health or WorkerHealth()

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; what failed on the way is in `attempts` of the reply, or of the error."""
        async with AsyncExitStack() as opened:
            yield await self._open_with_retries(opened, call)

    async def _open_with_retries(self, opened: AsyncExitStack, call: Call) -> Reply:
        failed: list[Attempt] = []
        said_nothing = False
        call = copy_with(call, places=Places())
        if self._budget and not call.broken:  # else what breaks off would pay for its own next call
            self._budget.earn(party_of(call))
        if any(self.name == name for name, _ in call.broken) and not self._can_afford(call):
            message = f"{self.name} broke off, and no more calls may be made again."
            raise WorkerUnavailable(message, worker=self.name)
        for number in count(1):
            began_s = time.monotonic()
            try:
                again = _count_attempts(call, len(failed)) if failed else call
                reply = await opened.enter_async_context(self._worker.open(again))
                if reply.is_empty and _may_say_more(call):
                    is_last = said_nothing or not _is_in_time(call, time.monotonic() - began_s)
                    is_last = is_last or number == self._attempts or not self._can_afford(call)
                    if not is_last or call.has_stand_in:
                        raise await _close_empty(reply, opened, is_last=is_last)
            except WorkerError as exc:
                wait_s, took_s = self._wait_s(number, exc), time.monotonic() - began_s
                waited_s = sum(each.waited_s for each in failed)
                if not self._asks_again(call, exc, number, wait_s, took_s, waited_s):
                    exc.attempts = (*failed, *exc.attempts)
                    raise
                said_nothing |= isinstance(exc, _SaidNothing)
                call = await call_again(call, exc, wait_s)
                lost = Attempt.of(self.name, Failure.of(exc), waited_s=wait_s, took_s=took_s)
                failed += [*exc.attempts, lost]
            else:
                reply.attempts = (*failed, *reply.attempts)
                return reply
        raise AssertionError("it is counted without end")

    def _asks_again(
        self, call: Call, error: WorkerError, number: int, wait_s: float, took_s: float, waited_s: float
    ) -> bool:
        """Whether the call is made once more after `error`, of its try of that `number`; it is paid for then."""
        if isinstance(error, _SaidNothing):
            return not error.is_last
        is_worth_it = self._may_help(error) and wait_s < _patience_s(call)
        if call.has_stand_in:
            is_asked = _retry_after_s(error) > 0 and waited_s + wait_s <= self._fallback_wait_s
            is_worth_it &= (is_asked or took_s + wait_s < QUICK_S) and self._health.circuit == "closed"
            is_worth_it &= not (isinstance(error, WorkerUnavailable) and error.only_late)
        return is_worth_it and number < self._attempts and self._can_afford(call)

    def _can_afford(self, call: Call) -> bool:
        return self._budget is None or self._budget.spend(party_of(call))

    def _may_help(self, error: WorkerError) -> bool:
        is_line = isinstance(error, LineTooLong)  # it has waited for as long as that is worth it
        return error.retryable and not is_line and _retry_after_s(error) <= self._max_wait_s

    def _wait_s(self, number: int, error: WorkerError) -> float:
        """Full jitter under a doubling bound
        (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter).
        """
        bound_s = min(self._max_wait_s, self._first_wait_s * 2 ** (number - 1))
        return max(_retry_after_s(error), random.uniform(0, bound_s))


class _SaidNothing(WorkerUnavailable):
    """Its answer ended well, without a word."""

    is_last: bool = False
    """Whether it is not asked again."""


def _may_say_more(call: Call) -> bool:
    """Whether an answer without a word is odd: there is nothing before it that may be all that there is to say, and
    nothing that it may have been cut by.
    """
    is_begun = call.prefix or call.messages[-1].role != "user"
    return call.site.operation in ("chat", "plan") and not (call.sampling.stop or is_begun)


def _is_in_time(call: Call, took_s: float) -> bool:
    """Whether there is time for another answer like one that took so long: little, where another worker is free."""
    return took_s < (QUICK_S if call.has_stand_in else _patience_s(call))


async def _close_empty(reply: Reply, opened: AsyncExitStack, *, is_last: bool) -> _SaidNothing:
    """What is said of it, with what it took."""
    try:
        with suppress(WorkerError):  # its end is known
            async with aclosing(aiter(reply)) as deltas:
                async for _ in deltas:
                    pass
    finally:
        await opened.aclose()
    error = _SaidNothing(
        f"{reply.worker} ended its answer without a word.",
        worker=reply.worker,
        only_this_call=True,
        is_last=is_last,
    )
    reply.charge(error)
    return error


def _count_attempts(call: Call, before: int) -> Call:
    """`call` as one that so many others have come before."""
    return copy_with(call, site=copy_with(call.site, attempt=call.site.attempt + before))


def _patience_s(call: Call) -> float:
    """The longest wait: half of the time that the caller has left, so that the rest is enough for the call,
    or for a fallback.
    """
    return inf if call.deadline_at_s is None else (call.deadline_at_s - time.monotonic()) / 2


def _retry_after_s(error: WorkerError) -> float:
    """How long the server asked us to wait."""
    return (error.retry_after_s or 0.0) if isinstance(error, WorkerBusy) else 0.0
