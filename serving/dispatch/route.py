"""A worker with its deployments: one call to it, at one of them."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.errors import ContextOverflow, LineTooLong, WorkerBusy, WorkerError, WorkerRefused
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure, charges
from conductor.model.reply import Reply
from conductor.model.terms import AttemptHold
from conductor.run.call import input_bound
from serving.dispatch.fitting import ModelProfile
from serving.dispatch.limiter import NO_RULES, Limiter, QueueRules
from serving.dispatch.retry_budget import RetryBudget, Skipped
from serving.dispatch.target import Target, Watch
from serving.health import WorkerHealth

BYTES_PER_TOKEN = 4
"""Of prompts, for what is counted before a provider says what it was."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """When a call is made again at the same worker.

    Args:
        attempts: the most attempts of one call.
        first_wait_s: bound of the first wait.
        max_wait_s: bound of every wait.
        fallback_wait_s: the longest that one call waits for `Retry-After` while a fallback could answer.
    """

    attempts: int = 1
    first_wait_s: float = 0.0
    max_wait_s: float = 0.0
    fallback_wait_s: float = 0.0


@dataclass(slots=True, eq=False)
class Route:
    """A worker, where it is reached, and the rules for calls to it.

    Args:
        name: of the worker.
        targets: its places, one or several.
        limiter: its slots; those of all deployments together if there are several.
        health: of its newest calls.
        profile: what its model accepts.
        retry: when a call is made again.
        retry_budget: of all its calls' retries; None: no limit.
        hedge_budget: of its hedges; None: it is never hedged.
    """

    name: str
    targets: tuple[Target, ...]
    limiter: Limiter
    health: WorkerHealth
    profile: ModelProfile
    retry: RetryRules = RetryRules()
    retry_budget: RetryBudget | None = None
    hedge_budget: RetryBudget | None = None

    @property
    def has_deployments(self) -> bool:
        """Whether it has named deployments."""
        return bool(self.targets[0].name)

    @property
    def is_free(self) -> bool:
        """Whether one more call would be sent at once to a worker that is well."""
        is_spent = self.has_deployments and all(each.wait_s for each in self.targets)
        return not (self.health.rest_s or self.limiter.is_full or is_spent)

    def open(
        self,
        call: Call,
        hold: AttemptHold | None,
        rules: QueueRules = NO_RULES,
    ) -> AbstractAsyncContextManager[Reply]:
        """Send the call to one of the deployments. See `Worker.open`.

        A deployment is drawn by weight among those that are healthy and have a free slot; then the others of these are
        tried, then full ones, then unhealthy ones. One that has reached its rate limit is not tried. A conversation
        that one of them has begun (with calls of tools) goes on there while it is well: no other can be sent its signed
        thoughts. A call that is made again goes where it has not gone yet.

        An error before the first token moves on to the next deployment, unless any of them would say the same.

        Raises:
            WorkerBusy: also if every deployment has reached its rate limit.
        """
        if not self.has_deployments:
            return self.targets[0].open(call, hold, rules=rules)
        return self._open_deployment(call, hold, rules)

    @asynccontextmanager
    async def _open_deployment(
        self, call: Call, hold: AttemptHold | None, rules: QueueRules
    ) -> AsyncGenerator[Reply]:
        waiting = None if hold is None else hold.waiting()
        async with self.limiter.slot(call, waiting, rules):
            with Watch(self.name, self.health, call) as watch:
                async with AsyncExitStack() as opened:
                    target, reply, estimate = await self._open_one(opened, call, hold, watch, rules)
                    reply.deployment = target.name
                    watch.speak(reply)
                    try:
                        yield reply
                    finally:
                        if reply.usage is not None:
                            target.correct(reply.usage.total_tokens - estimate)

    async def _open_one(
        self,
        opened: AsyncExitStack,
        call: Call,
        hold: AttemptHold | None,
        watch: Watch,
        rules: QueueRules,
    ) -> tuple[Target, Reply, int]:
        failed: list[Attempt] = []
        targets = self._order(call)
        estimate = input_bound(call) // BYTES_PER_TOKEN
        for number, target in enumerate(targets, 1):
            began_s = time.monotonic()
            others = targets[number:]
            self._take(target, call, estimate)
            terms = call.terms
            has_fallback = terms.has_fallback or any(each.is_free for each in others)
            made = call
            if failed or has_fallback != terms.has_fallback:
                site = replace(call.site, attempt=call.site.attempt + len(failed))
                made = replace(call, site=site, terms=replace(terms, has_fallback=has_fallback))
            try:
                opening = target.open(made, hold, watch, rules)
                reply = await opened.enter_async_context(_probe(target, opening))
            except WorkerError as exc:
                target.correct(-estimate)
                if not others or not _may_differ(exc):
                    exc.attempts = (*failed, *exc.attempts)
                    raise
                took_s = time.monotonic() - began_s
                if isinstance(exc, LineTooLong):
                    rules = dataclasses.replace(rules, waited_s=rules.waited_s + exc.waited_s)
                call = await call_again(call, hold, exc)
                lost = Attempt.of(self.name, Failure.of(exc), took_s=took_s)  # with what was paid for it
                failed += [*exc.attempts, replace(lost, deployment=target.name)]
            else:
                reply.attempts = (*failed, *reply.attempts)
                return target, reply, estimate
        raise AssertionError("there is at least one deployment")

    def _take(self, target: Target, call: Call, estimate: int) -> None:
        if places := call.terms.limits.places:
            places.take(target.name, lambda: any(each.is_free for each in self._others(call, self.targets)))
        target.count(estimate)

    def _order(self, call: Call) -> list[Target]:
        """Return the deployments in the order in which they are tried.

        Raises:
            WorkerBusy: every one has reached its rate limit.
        """
        ready = [each for each in self.targets if not each.wait_s]
        if not ready:
            raise WorkerBusy(
                f"{self.name} is busy. Try again later.",
                worker=self.name,
                retry_after_s=min(each.wait_s for each in self.targets),
                by_own_rate=True,
                detail="Every deployment has reached its requests_per_minute or tokens_per_minute.",
            )
        # The least of exponential draws is each one's with a chance of its weight over all of them.
        drawn = sorted(self._others(call, ready) or ready, key=lambda each: random.expovariate(each.weight))
        writer = self._writer(call)

        def reluctance(each: Target) -> tuple[float, bool, bool, bool]:
            rest_s, is_full = each.reluctance
            is_broken = (self.name, each.name) in call.terms.broken
            return rest_s, is_broken, not writer or each.account != writer, is_full

        return sorted(drawn, key=reluctance)

    def _others(self, call: Call, targets: Sequence[Target]) -> list[Target]:
        """Return those where the call has not gone yet."""
        places = call.terms.limits.places
        taken = places.taken if places else ()
        return [each for each in targets if each.name not in taken]

    def _writer(self, call: Call) -> str:
        """Return the account that wrote the newest native turn of this worker, or ""."""
        turns = (message.native for message in reversed(call.messages) if message.native)
        return next((native.account for native in turns if native.worker == self.name), "")


async def call_again(call: Call, hold: AttemptHold | None, error: WorkerError, wait_s: float = 0.0) -> Call:
    """Pay for the attempt that failed and reserve the next. Return the call, whose answer may have to be shorter. If the
    attempt was paid, the run has begun, and is not turned away from a queue any more.

    Raises:
        BudgetExceeded: the next attempt could cost more than is left.
        StoreUnavailable: the reservation cannot be stored.
    """
    if call.terms.begins and is_paid(error):
        call = replace(call, terms=replace(call.terms, begins=False))
    if hold is None:
        await asyncio.sleep(wait_s)
        return call
    longest = await hold.renew(error, wait_s)
    wanted = call.sampling.max_output_tokens
    longest = longest if wanted is None else min(wanted, longest)
    return replace(call, sampling=replace(call.sampling, max_output_tokens=longest))


def is_paid(error: WorkerError) -> bool:
    """Return whether the failed attempt, or one before it, took tokens or money."""
    before = any(charges(None, error.attempts))
    return before or error.billed_at_bound or error.usage is not None or error.cost_usd is not None


@asynccontextmanager
async def _probe(target: Target, opening: AbstractAsyncContextManager[Reply]) -> AsyncGenerator[Reply]:
    probes_until_s = target.health.begin_call()
    try:
        async with opening as reply:
            yield reply
    finally:
        target.health.end_call(probes_until_s)


def _may_differ(error: WorkerError) -> bool:
    """Return whether another deployment may answer what one of them did not."""
    if isinstance(error, WorkerRefused):
        return error.every_call
    return not isinstance(error, ContextOverflow | Skipped)
