"""Route of a worker: its deployments, their shared slots, and the choice of a deployment for each call."""

import asyncio
import dataclasses
import random
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncExitStack,
    asynccontextmanager,
)
from dataclasses import dataclass
from math import inf, log

from msgspec.structs import replace

from conductor.errors import ContextOverflow, LineTooLong, WorkerBusy, WorkerError, WorkerRefused
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.reply import Reply
from conductor.model.terms import AttemptHold
from conductor.run.call_bound import input_estimate
from conductor.run.plan_record import charges
from serving.dispatch.call_budgets import RetryBudget
from serving.dispatch.limiter import NO_RULES, CallSkipped, Limiter, QueueRules
from serving.dispatch.model_parameters import ModelProfile
from serving.dispatch.target import Target, Watch
from serving.fairness import unit_hash
from serving.health import WorkerHealth
from serving.workers.cache_marks import conversation_in_cache

UNEVEN_FACTOR, UNEVEN_CALLS = 1.25, 4
"""Most open calls of a deployment for a conversation: its share by weight times the factor, plus the number."""


@dataclass(frozen=True, slots=True)
class RetryRules:
    """Rules for retries of a call at the same worker.

    Args:
        first_wait_s: maximum seconds before the first retry. The limit doubles with each further retry.
        fallback_wait_s: maximum seconds in total that one call waits for `Retry-After` while a fallback could
            answer.
    """

    attempts: int = 1
    first_wait_s: float = 0.0
    max_wait_s: float = 0.0
    fallback_wait_s: float = 0.0


class SharedLimiter(Limiter):
    """Limiter of a worker with several deployments.

    It has as many slots as the healthy deployments together, but at most `slots`. All calls of the worker
    wait in its queue. The limits of the deployments change (`AdaptiveLimiter`), so they are read again
    whenever a call starts or ends.
    """

    def __init__(self, name: str, deployments: Sequence[Target], slots: int, max_wait_s: float = inf) -> None:
        super().__init__(name, slots, max_wait_s)
        self._most, self._deployments = slots, deployments
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    async def acquire(
        self, slot: object, call: Call, waiting: AbstractContextManager[object], rules: QueueRules
    ) -> None:
        self._look()
        try:
            await super().acquire(slot, call, waiting, rules)
        except BaseException:
            self._keep_looking()
            raise

    def release(self, slot: object, call: Call) -> None:
        super().release(slot, call)
        self._keep_looking()

    def can_reach(self, deployment: str) -> bool:
        return any(each.name == deployment and not _unavailable_s(each) for each in self._deployments)

    def _look(self) -> None:
        """Recalculate the slots of the available deployments, one for a probed one, or of all if there are
        none.
        """
        healthy = [each for each in self._deployments if not _unavailable_s(each)]
        slots = [
            1 if each.health.circuit == "half_open" else each.limiter.n_slots
            for each in healthy or self._deployments
        ]
        if self.n_slots != (n := min(self._most, sum(slots))):
            self.resize(n)

    def _keep_looking(self) -> None:
        """Recalculate the slots now, and again when the next unavailable deployment may be tried."""
        self._look()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waits_s = [wait_s for each in self._deployments if (wait_s := _unavailable_s(each))]
        if waits_s:
            self._timer = asyncio.get_running_loop().call_later(min(waits_s), self._keep_looking)


def _unavailable_s(deployment: Target) -> float:
    return max(deployment.health.skip_s, deployment.wait_s)


@dataclass(slots=True, eq=False)
class Route:
    """A worker, its targets, and the rules for calls to it.

    Args:
        targets: its deployments, or its only target.
        retry_budget: budget of retries for all calls, or None for no limit.
        hedge_budget: budget of hedges, or None to send no hedges.
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
        return bool(self.targets[0].name)

    @property
    def is_free(self) -> bool:
        """True if the worker is healthy and can send a call immediately."""
        is_spent = self.has_deployments and all(each.wait_s for each in self.targets)
        return not (self.health.skip_s or self.limiter.is_full or is_spent)

    def open(
        self, call: Call, hold: AttemptHold | None, rules: QueueRules = NO_RULES
    ) -> AbstractAsyncContextManager[Reply]:
        """Send the call to one of the deployments. See `Worker.open`.

        Deployments are tried in this order, each group by weight. The turns of a conversation have the same order,
        so that its prompt cache is found again (`conversation_in_cache`). The deployment that is known to have the cache
        is the first one (`Terms.home`). Other calls have a random order.

        1. healthy deployments with a free slot
        2. healthy deployments without a free slot, or with far more open calls than their share if the call belongs to
           a conversation (`_is_uneven`)
        3. unhealthy deployments

        Deployments that have reached their rate limit are not tried. A conversation with tool calls stays at
        the deployment that began it, as long as that one is healthy, because other accounts do not accept its
        signed reasoning. A retry prefers deployments to which the call has not been sent.

        After an error before the first token, the next deployment is tried, unless it would return the same
        error.
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
        self, opened: AsyncExitStack, call: Call, hold: AttemptHold | None, watch: Watch, rules: QueueRules
    ) -> tuple[Target, Reply, int]:
        failures: list[Attempt] = []
        targets = self._order(call)
        estimate = input_estimate(call)
        for number, target in enumerate(targets, 1):
            began_s = time.monotonic()
            others = targets[number:]
            self._take(target, call, estimate)
            terms = call.terms
            has_fallback = terms.has_fallback or any(each.is_free for each in others)
            attempt = call
            if failures or has_fallback != terms.has_fallback:
                site = replace(call.site, attempt=call.site.attempt + len(failures))
                attempt = replace(call, site=site, terms=replace(terms, has_fallback=has_fallback))
            try:
                opening = target.open(attempt, hold, watch, rules)
                reply = await opened.enter_async_context(_probe(target, opening))
            except WorkerError as exc:
                target.correct(-estimate)
                if not others or not _may_succeed_elsewhere(exc):
                    exc.attempts = (*failures, *exc.attempts)
                    raise
                took_s = time.monotonic() - began_s
                if isinstance(exc, LineTooLong):
                    rules = dataclasses.replace(rules, waited_s=rules.waited_s + exc.waited_s)
                call = await call_again(call, hold, exc)
                failed_attempt = Attempt.of(self.name, Failure.of(exc), took_s=took_s)  # includes its charges
                failures += [*exc.attempts, replace(failed_attempt, deployment=target.name)]
            else:
                reply.attempts = (*failures, *reply.attempts)
                return target, reply, estimate
        raise AssertionError("there is at least one deployment")

    def _take(self, target: Target, call: Call, estimate: int) -> None:
        if places := call.terms.limits.places:
            places.take(target.name, lambda: any(each.is_free for each in self._others(call, self.targets)))
        target.count(estimate)

    def _order(self, call: Call) -> list[Target]:
        """Return the deployments in the order in which they are tried. Raise WorkerBusy if all are at their
        limit.
        """
        ready = [each for each in self.targets if not each.wait_s]
        if not ready:
            raise WorkerBusy(
                f"{self.name} is busy. Try again later.",
                worker=self.name,
                retry_after_s=min(each.wait_s for each in self.targets),
                by_own_rate=True,
                detail="Every deployment has reached its `requests_per_minute` or `tokens_per_minute`.",
            )
        conversation = conversation_in_cache(call, self.profile.model)
        ranking = sorted(self._others(call, ready) or ready, key=lambda each: _draw(conversation, each))
        ranking.sort(key=lambda each: (self.name, each.name) != call.terms.home)
        writer = self._writer(call)
        healthy = [each for each in ready if not each.health.skip_s]

        def reluctance(each: Target) -> tuple[float, bool, bool, bool]:
            skip_s, is_full = each.reluctance
            is_broken = (self.name, each.name) in call.terms.broken
            is_full = is_full or (bool(conversation) and _is_uneven(each, healthy))
            return skip_s, is_broken, not writer or each.account != writer, is_full

        return sorted(ranking, key=reluctance)

    def _others(self, call: Call, targets: Sequence[Target]) -> list[Target]:
        """Return the targets to which the call has not been sent."""
        places = call.terms.limits.places
        used_names = places.used_names if places else ()
        return [each for each in targets if each.name not in used_names]

    def _writer(self, call: Call) -> str:
        """Return the account that wrote this worker's newest turn in its provider's own format, or ""."""
        turns = (message.native for message in reversed(call.messages) if message.native)
        return next((native.account for native in turns if native.worker == self.name), "")


def _is_uneven(target: Target, targets: Sequence[Target]) -> bool:
    """Return whether another call would give `target` far more than its share of the open calls of `targets`.

    Otherwise one conversation, or many requests that begin alike, would overload one deployment while others are idle
    (consistent hashing with bounded loads, https://arxiv.org/abs/1608.01350).
    """
    n_open = 1 + sum(each.limiter.open_calls for each in targets)
    share = target.weight / sum(each.weight for each in targets) if target in targets else 1.0
    return 1 + target.limiter.open_calls > UNEVEN_CALLS + UNEVEN_FACTOR * share * n_open


def _draw(conversation: str, target: Target) -> float:
    """Draw an exponential number with the rate `target.weight`.

    Of such numbers, each is the smallest with a probability proportional to its weight. The number of a
    conversation is always the same, so all routers order the targets alike. If a target fails or is removed, only
    its own conversations move (weighted rendezvous hashing).
    """
    if not conversation:
        return random.expovariate(target.weight)
    return -log(unit_hash(f"{conversation}\0{target.name}")) / target.weight


async def call_again(call: Call, hold: AttemptHold | None, error: WorkerError, wait_s: float = 0.0) -> Call:
    """Settle the budget of a failed attempt, wait, and return the call with a new reservation, maybe with a
    lower output limit.

    After a paid attempt, the call is not the first of its run, so a long queue does not reject it. Raise
    BudgetExceeded if there is not enough left.
    """
    if call.terms.is_first_paid_call and is_paid(error):
        call = replace(call, terms=replace(call.terms, is_first_paid_call=False))
    if hold is None:
        await asyncio.sleep(wait_s)
        return call
    longest = await hold.renew(error, wait_s)
    limit = call.sampling.max_output_tokens
    longest = longest if limit is None else min(limit, longest)
    return replace(call, sampling=replace(call.sampling, max_output_tokens=longest))


def is_paid(error: WorkerError) -> bool:
    """Return whether the failed attempt, or one of the attempts that it lists, cost tokens or money."""
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


def _may_succeed_elsewhere(error: WorkerError) -> bool:
    """Return whether another deployment may succeed after this error."""
    if isinstance(error, WorkerRefused):
        return error.every_call
    return not isinstance(error, ContextOverflow | CallSkipped)
