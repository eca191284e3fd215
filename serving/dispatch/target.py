"""One place where a worker is reached, and one attempt at it."""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, nullcontext
from dataclasses import dataclass

from conductor.errors import WorkerBusy
from conductor.model.call import Call
from conductor.model.callee import Callee
from conductor.model.field_values import copy_with
from conductor.model.holds import AttemptHold
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.dispatch.call_span import CallSpan, SpanFacts
from serving.dispatch.limiter import NO_RULES, Limiter, QueueRules
from serving.dispatch.limits import limits_of
from serving.dispatch.rate import Rate
from serving.dispatch.watch import Watch
from serving.health import WorkerHealth


@dataclass(slots=True, eq=False)
class Target:
    """A worker at one of its places: the only one, or one of several deployments.

    Args:
        callee: its name, its deployment and its price.
        client: sends the call.
        limiter: its slots.
        health: of its newest calls.
        span: what its spans say.
        learns_first_token: whether its usual first token limits a call; None: the first token is not limited.
        learns_pauses: whether its usual pauses limit a call.
        weight: its share of the calls among deployments.
        requests, tokens: its rate limits; None: no limit.
        account: whose turns its model takes back as they were; see `Native.account`.
    """

    callee: Callee
    client: Worker
    limiter: Limiter
    health: WorkerHealth
    span: SpanFacts
    learns_first_token: bool | None = True
    learns_pauses: bool = True
    weight: float = 1.0
    requests: Rate | None = None
    tokens: Rate | None = None
    account: str = ""

    @property
    def name(self) -> str:
        """Of the deployment; empty if it is the only place."""
        return self.callee.deployment

    @property
    def wait_s(self) -> float:
        """Seconds until its rate limits admit a call."""
        return max(rate.wait_s if rate else 0.0 for rate in (self.requests, self.tokens))

    @property
    def is_free(self) -> bool:
        """Whether a call would be sent at once to a healthy place."""
        return not (any(self.reluctance) or self.wait_s)

    @property
    def reluctance(self) -> tuple[float, bool]:
        """Sort key: seconds that it is skipped yet, and whether it is full."""
        return self.health.rest_s, self.limiter.is_full

    def count(self, tokens: int) -> None:
        """Count a call of about so many tokens."""
        if self.requests is not None:
            self.requests.take(1)
        self.correct(tokens)

    def correct(self, tokens: int) -> None:
        """Count more tokens for a call that was counted, or fewer."""
        if self.tokens is not None:
            self.tokens.take(tokens)

    @asynccontextmanager
    async def open(
        self,
        call: Call,
        hold: AttemptHold | None,
        outer: Watch | None = None,
        rules: QueueRules = NO_RULES,
    ) -> AsyncGenerator[Reply]:
        """Make one attempt: wait for a slot, then send the call. See `Worker.open`.

        Args:
            call: as it is sent.
            hold: what is reserved for it.
            outer: counts the call for the worker as a whole, if this is one of several deployments.
            rules: of its wait for a slot.
        """
        waiting = _waiting(hold, outer)
        async with self.limiter.slot(call, waiting, rules):
            terms, limiter = call.terms, self.limiter
            sent_s, was_full = time.monotonic(), limiter.is_full or limiter.queued > 0
            limiter.on_sent(terms)
            try:
                with Watch(self.callee.worker, self.health, call) as watch, CallSpan(self.span, self.callee, call) as span:  # fmt: skip
                    if hold is not None:
                        hold.sent(self.callee)
                    limits = limits_of(
                        terms,
                        self.health,
                        learns_first_token=self.learns_first_token,
                        learns_pauses=self.learns_pauses,
                    )
                    limits.on_queued = _on_queued(call, watch, outer)
                    sent = copy_with(call, terms=copy_with(terms, limits=limits))
                    async with self.client.open(sent) as reply:
                        limiter.on_first_token(terms, sent_s, was_full=was_full)
                        watch.speak(reply)
                        span.speak(reply)
                        yield reply
                    pauses = limits.pauses
                    if pauses is not None and pauses.longest_s is not None and reply.finish is not None:
                        self.health.pause(pauses.longest_s)
            except WorkerBusy:
                limiter.on_busy(call, sent_s)
                raise


def _waiting(hold: AttemptHold | None, outer: Watch | None) -> AbstractContextManager[object]:
    held = nullcontext() if hold is None else hold.waiting()
    if outer is None:
        return held
    both = ExitStack()
    both.enter_context(outer.pause())
    both.enter_context(held)
    return both


def _on_queued(call: Call, watch: Watch, outer: Watch | None) -> Callable[[str], None]:
    def on_queued(why: str) -> None:
        watch.excuse()
        if outer is not None:
            outer.excuse()
        if call.terms.observer is not None:
            call.terms.observer.on_queued(why)

    return on_queued
