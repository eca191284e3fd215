"""Several places where one model is reached, as one worker: which of them is asked, and what follows where it fails."""

import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.field_values import copy_with
from conductor.model.reply import Reply
from conductor.model.retries import call_again
from conductor.model.worker import Worker
from conductor.run.call_bound import input_bound
from serving.health import WorkerHealth
from serving.layers.left_alone import LeftAlone
from serving.layers.limited import Limited
from serving.layers.rate import Rate

BYTES_PER_TOKEN = 4
"""Of prompts, for what is counted before a provider says what it was."""


@dataclass(frozen=True, slots=True, eq=False)
class Deployment:
    """One of the places.

    Args:
        name: of it.
        worker: with the layers around one place.
        limiter: the one of those that knows how many calls are open.
        health: of its newest calls.
        weight: its share.
        requests, tokens: how many it may be sent; None: any number.
        account: whose turns its model takes back as they were; see `Native.account`.
    """

    name: str
    worker: Worker
    limiter: Limited
    health: WorkerHealth
    weight: float
    requests: Rate | None = None
    tokens: Rate | None = None
    account: str = ""

    @property
    def wait_s(self) -> float:
        """How long until it may be sent a call."""
        return max(rate.wait_s if rate else 0.0 for rate in (self.requests, self.tokens))

    @property
    def is_free(self) -> bool:
        """Whether one more call would be sent at once to a place that is well."""
        return not (any(self.reluctance) or self.wait_s)

    def count(self, tokens: int) -> None:
        """A call of about so many tokens is sent."""
        if self.requests is not None:
            self.requests.take(1)
        self.correct(tokens)

    def correct(self, tokens: int) -> None:
        """It took more tokens than were counted, or fewer."""
        if self.tokens is not None:
            self.tokens.take(tokens)

    @property
    def reluctance(self) -> tuple[float, bool]:
        """By which it comes later in the line: how long it is left alone yet, and whether it is full."""
        return self.health.rest_s, self.limiter.is_full


class Balancing:
    """`deployments` as the worker `name`. A call goes to one of them, drawn by weight among those that are well
    and have a free slot; then to the others of these, then to full ones, then to those that are left alone.
    One that has reached its rate is not asked.

    A conversation that one of them has begun (with calls of tools) goes on there while it is well: no other can be
    sent its signed thoughts.

    A call that is made once more, because it failed or is late, goes where it has not gone yet.

    An error before the first token moves on to the next, unless any of them would say the same: the prompt was
    refused, or is too long.
    """

    def __init__(self, name: str, deployments: Sequence[Deployment]) -> None:
        self.name, self._deployments = name, tuple(deployments)

    @property
    def is_spent(self) -> bool:
        """Whether every deployment has reached its rate."""
        return all(each.wait_s for each in self._deployments)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; `deployment` of the reply says who answers, `attempts` who failed before.

        Raises:
            WorkerBusy: also where every one has reached its rate, and none was asked.
        """
        async with AsyncExitStack() as opened:
            deployment, reply = await self._open_one(opened, call)
            reply.deployment = deployment.name
            try:
                yield reply
            finally:
                if reply.usage is not None:
                    deployment.correct(reply.usage.total_tokens - _estimate(call))

    async def _open_one(self, opened: AsyncExitStack, call: Call) -> tuple[Deployment, Reply]:
        failed: list[Attempt] = []
        line = self._line(call)
        for deployment in line:
            began_s = time.monotonic()
            site = copy_with(call.site, attempt=call.site.attempt + len(failed))
            self._take(deployment, call)
            has_stand_in = call.has_stand_in or any(each.is_free for each in line[len(failed) + 1 :])
            made = copy_with(call, site=site, has_stand_in=has_stand_in)
            try:
                reply = await opened.enter_async_context(_ask(deployment, made))
            except WorkerError as exc:
                deployment.correct(-_estimate(call))
                if deployment is line[-1] or not _may_differ(exc):
                    exc.attempts = (*failed, *exc.attempts)
                    raise
                took_s = time.monotonic() - began_s
                call = await call_again(call, exc)
                lost = Attempt.of(self.name, Failure.of(exc), took_s=took_s)  # with what has been paid for it
                failed += [*exc.attempts, replace(lost, deployment=deployment.name)]
            else:
                reply.attempts = (*failed, *reply.attempts)
                return deployment, reply
        raise AssertionError("the line is not empty")

    def _take(self, deployment: Deployment, call: Call) -> None:
        """`call` goes there."""
        if call.places:
            call.places.take(
                deployment.name, lambda: any(each.is_free for each in self._other_deployments(call))
            )
        deployment.count(_estimate(call))

    def _line(self, call: Call) -> list[Deployment]:
        """Who is asked, in order: drawn by weight without putting back, then by reluctance; of those that are well,
        the one that wrote the newest turn first.

        Raises:
            WorkerBusy: every one has reached its rate.
        """
        free = [each for each in self._deployments if not each.wait_s]
        if not free:
            wait_s = min(each.wait_s for each in self._deployments)
            raise WorkerBusy(
                f"{self.name} is busy. Try again later.",
                worker=self.name,
                retry_after_s=wait_s,
                by_own_rate=True,
                detail="Every deployment has reached its requests_per_minute or tokens_per_minute.",
            )
        # The least of exponential draws is each one's with a chance of its weight over all of them.
        drawn = sorted(
            self._other_deployments(call, free) or free, key=lambda each: random.expovariate(each.weight)
        )
        writer = self._writer(call)

        def reluctance(each: Deployment) -> tuple[float, bool, bool, bool]:
            rest_s, is_full = each.reluctance
            return (
                rest_s,
                (self.name, each.name) in call.broken,
                not writer or each.account != writer,
                is_full,
            )

        return sorted(drawn, key=reluctance)

    def _other_deployments(self, call: Call, line: Sequence[Deployment] = ()) -> list[Deployment]:
        """Those of `line`, or of all, where the call has not gone."""
        taken = call.places.taken if call.places else ()
        return [each for each in line or self._deployments if each.name not in taken]

    def _writer(self, call: Call) -> str:
        """The account that wrote the newest native turn of this worker's; empty: none."""
        turns = (message.native for message in reversed(call.messages) if message.native)
        return next((native.account for native in turns if native.worker == self.name), "")


@asynccontextmanager
async def _ask(deployment: Deployment, call: Call) -> AsyncGenerator[Reply]:
    probes_until_s = deployment.health.begin_call()
    try:
        async with deployment.worker.open(call) as reply:
            yield reply
    finally:
        deployment.health.end_call(probes_until_s)


def _estimate(call: Call) -> int:
    """About how many tokens the prompt has."""
    return input_bound(call) // BYTES_PER_TOKEN


def _may_differ(error: WorkerError) -> bool:
    """Whether another place may answer what one of them did not."""
    if isinstance(error, WorkerRefused):
        return error.every_call
    return not isinstance(error, ContextOverflow | LeftAlone)
