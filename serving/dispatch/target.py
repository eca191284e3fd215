"""Target of a worker's calls: one of its deployments, or the worker's only endpoint. Makes one attempt at a
call.

An attempt may send nothing for a time that is learned from earlier calls, and that is bounded by a share of the
time that the caller has left. The first token and pauses are limited only while another worker is free to
answer. `serving/workers/stall_timer.py` measures the silence, because the worker's client can tell tokens from
comments, pings and headers.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from conductor.errors import (
    ContextOverflow,
    LineTooLong,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.failure import Failure
from conductor.model.reply import Reply
from conductor.model.terms import AttemptHold, AttemptLimits, Callee, Pauses, Terms
from conductor.model.worker import Worker
from serving.dispatch.call_budgets import TokenBucket
from serving.dispatch.limiter import NO_RULES, Limiter, QueueRules
from serving.health import FAILED, MAX_OPEN_S, Fault, WorkerHealth
from serving.redaction.failures import outline
from serving.telemetry.spans import CallSpan, SpanFacts, messages_in_span
from serving.witnesses import witness_of

logger = logging.getLogger("podium")

BUSY_SKIP_S = 1.0
"""Seconds for which a busy worker is skipped if it sends no `Retry-After`. It is also the maximum if a rate
limit of the settings was reached.
"""
REFUSED_SKIP_S = MAX_OPEN_S
"""Seconds for which a worker is skipped if it refuses every call, for example because its key was revoked."""
KNOWN_CALLS = 20
"""Number of measured first tokens, or of complete answers, from which limits are learned."""
FIRST_WORD_WITHIN_S = 15.0
"""Target for the seconds until the client gets its first token, whichever worker sends it."""
FALLBACK_S = 2.0
"""Part of `FIRST_WORD_WITHIN_S` for the fallback to start."""
START_S = FIRST_WORD_WITHIN_S - FALLBACK_S
"""Limit for the first token while too few are measured."""
FAILING_S = 30.0
"""Limit for the first token while the worker fails. It is long, so that a slower worker can recover."""
TIMES_P99 = 4.0
LEAST_S = 10.0
SHARE = 0.5
"""Share of the time until the deadline that one attempt may use. The rest is for the fallback."""
FAILURE_SILENCE_TIMES_P99 = 2.0
FAILURE_SILENCE_LEAST_S = 3.0
LEAST_PAUSE_S = 20.0
"""Minimum limit for a pause, high because a cut answer is already paid for and partly shown."""


def limits_of(
    terms: Terms, health: WorkerHealth, *, learns_first_token: bool | None, learns_pauses: bool
) -> AttemptLimits:
    """Return how long an attempt may wait for its first token and between tokens. `Target` explains the
    flags.
    """
    limits = AttemptLimits(places=terms.limits.places)
    if terms.has_fallback and learns_first_token is not None:
        limits.first_token_s = usual_limit_s(health) if learns_first_token else None
        limits.patience_s = _patience_s(terms)
    if learns_pauses:
        is_limited = terms.has_fallback and terms.outlasts_break
        limits.pauses = Pauses(usual_pause_s(health) if is_limited else None)
    return limits


def usual_limit_s(health: WorkerHealth) -> float:
    """Return the seconds after which a first token that has not arrived is unlikely to arrive."""
    p99_s = _p99_s(health)
    if p99_s is None:
        return START_S
    return max(LEAST_S, TIMES_P99 * p99_s) if health.circuit == "closed" else FAILING_S


def failure_silence_s(health: WorkerHealth) -> float:
    """Return the silence in seconds after which an abandoned call counts as a failure. This is not a timeout."""
    p99_s = _p99_s(health)
    silence_s = LEAST_S if p99_s is None else max(FAILURE_SILENCE_LEAST_S, FAILURE_SILENCE_TIMES_P99 * p99_s)
    return min(silence_s, usual_limit_s(health))


def usual_pause_s(health: WorkerHealth) -> float | None:
    """Return the seconds after which the next token of an answer is unlikely to arrive.

    Return None if too few pauses are measured, or if the worker is unhealthy.
    """
    if health.pauses < KNOWN_CALLS or health.circuit != "closed":
        return None
    return max(LEAST_PAUSE_S, TIMES_P99 * (health.pause_s(0.99) or 0.0))


def _p99_s(health: WorkerHealth) -> float | None:
    return health.first_token_s(0.99) if health.first_tokens >= KNOWN_CALLS else None


def _patience_s(terms: Terms) -> float | None:
    if terms.deadline_at_s is None:
        return None
    return max(0.0, SHARE * (terms.deadline_at_s - time.monotonic()))


class Watch:
    """Context manager that counts the outcome of one call in a worker's health. Enter it when the call is
    sent.

    A call that is cancelled or runs out of time before its first token counts as a failure if two conditions
    are met: the worker was silent for longer than usual, and no other call got its first token in the
    meantime.
    """

    def __init__(self, name: str, health: WorkerHealth, call: Call) -> None:
        self._name, self._health, self._call = name, health, call
        self._reply: Reply | None = None
        self._began_s = self._silent_since_s = 0.0

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._silent_since_s = inf if self._call.terms.priority == "batch" else self._began_s
        self._health.witnesses.traffic.note(self._call.terms.tenant)
        return self

    def speak(self, reply: Reply) -> None:
        self._reply = reply
        self._health.speak(time.monotonic() - self._began_s)

    def excuse(self) -> None:
        """Stop counting silence, because it has a known reason such as a cold start."""
        self._silent_since_s = inf

    @contextmanager
    def pause(self) -> Generator[None]:
        """Do not count the block as silence. In it, the call waits for a slot of a deployment."""
        since_s, self._silent_since_s = self._silent_since_s, inf
        yield
        self._silent_since_s = inf if since_s == inf else time.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        is_failure = False
        if isinstance(error, WorkerError):
            if isinstance(error, WorkerBusy) and error.by_own_rate:
                # Short, because the tokens of a prompt are an estimate that is refunded if the call fails.
                self._health.skip(min(_skip_s(error), BUSY_SKIP_S))
            is_late = isinstance(error, WorkerUnavailable) and error.only_late
            is_failure = _blames_worker(error) and not (is_late and not self._is_too_silent(self._began_s))
        elif isinstance(error, asyncio.CancelledError):
            is_failure = self._reply is None and self._is_too_silent(self._silent_since_s)
        if is_failure:
            self._fail(error if isinstance(error, WorkerError) else None)
        elif self._reply is not None and self._reply.finish is not None:
            self._health.succeed()

    def _fail(self, error: WorkerError | None) -> None:
        """Count a failed call. If `error` is None, the worker was silent for too long.

        The worker is skipped for all keys only if calls of enough tenants failed, or if it clearly refuses
        every call.
        """
        is_refusal = isinstance(error, WorkerRefused)
        is_doubtful = isinstance(error, WorkerRefused) and error.in_doubt
        what = type(error).__name__ if isinstance(error, WorkerBusy | WorkerRefused) else FAILED
        for_all = self._health.witnesses.tell(what, witness_of(self._call), is_clear=not is_doubtful)
        for_all |= is_refusal and not is_doubtful
        was_failing = self._health.is_failing
        self._health.fail(
            _skip_s(error) if error and for_all else 0.0,
            for_all=for_all,
            fault=_fault_of(error, self._name, self._call),
            refuses=is_refusal and for_all,
        )
        if self._health.is_failing and not was_failing and (first := self._health.first_fault):
            logger.warning(
                "Worker %s is failing. First failure: %s %s", self._name, first.description, first.detail
            )

    def _is_too_silent(self, since_s: float) -> bool:
        """Return whether the silence since `since_s` indicates that the worker is unhealthy."""
        is_long = time.monotonic() - since_s > failure_silence_s(self._health)
        return is_long and self._health.spoke_at_s <= self._began_s


def _fault_of(error: WorkerError | None, worker: str, call: Call) -> Fault:
    """Return the report of a failed call. Its detail may quote the prompt, of which an outline is kept if
    texts may not be stored.
    """
    if error is None:
        return Fault("WorkerUnavailable", f"{worker} sent no token within the time limit.")
    failure = Failure.of(error)
    detail = failure.detail if call.terms.permit.stores else outline(failure)
    return Fault(failure.code, failure.message, detail)


def _skip_s(error: WorkerError) -> float:
    """Return for how many seconds to skip the worker after this error."""
    if isinstance(error, WorkerBusy):
        return error.retry_after_s or BUSY_SKIP_S
    return REFUSED_SKIP_S if isinstance(error, WorkerRefused) else 0.0


def _blames_worker(error: WorkerError) -> bool:
    """Return whether other calls would probably fail too. A refused or too long prompt, or a rejected
    continuation, does not show that.
    """
    if isinstance(error, WorkerRefused):
        return error.every_call
    if isinstance(error, WorkerUnavailable):
        return not error.only_this_call
    if isinstance(error, WorkerBusy):
        return not error.by_own_rate
    return not isinstance(error, ContextOverflow | LineTooLong)


@dataclass(slots=True, eq=False)
class Target:
    """An endpoint of a worker: its only one, or one of several deployments.

    Args:
        learns_first_token: whether the first token is limited by the target's usual time. If False, only the
            settings limit it. If None, it has no limit.
        learns_pauses: whether pauses between tokens are limited by the target's usual pauses.
        requests, tokens: rate limits, or None for no limit.
        account: account at the provider. The model accepts only native turns of this account unchanged. See
            `Native.account`.
    """

    callee: Callee
    client: Worker
    limiter: Limiter
    health: WorkerHealth
    span: SpanFacts
    learns_first_token: bool | None = True
    learns_pauses: bool = True
    weight: float = 1.0
    requests: TokenBucket | None = None
    tokens: TokenBucket | None = None
    account: str = ""

    @property
    def name(self) -> str:
        """Name of the deployment, or "" if the worker has no deployments."""
        return self.callee.deployment

    @property
    def wait_s(self) -> float:
        """Seconds until its rate limits admit a call."""
        return max(rate.wait_s if rate else 0.0 for rate in (self.requests, self.tokens))

    @property
    def is_free(self) -> bool:
        """True if the target is healthy and can send a call immediately."""
        return not (any(self.reluctance) or self.wait_s)

    @property
    def reluctance(self) -> tuple[float, bool]:
        """Sort key: seconds until the target may be called, and whether it is full."""
        return self.health.skip_s, self.limiter.is_full

    def count(self, tokens: int) -> None:
        """Count a call of an estimated number of tokens against the rate limits."""
        if self.requests is not None:
            self.requests.take(1)
        self.correct(tokens)

    def correct(self, tokens: int) -> None:
        """Correct the number of tokens of a counted call by `tokens`, which may be negative."""
        if self.tokens is not None:
            self.tokens.take(tokens)

    @asynccontextmanager
    async def open(
        self, call: Call, hold: AttemptHold | None, outer: Watch | None = None, rules: QueueRules = NO_RULES
    ) -> AsyncGenerator[Reply]:
        """Make one attempt: wait for a slot, then send the call. `outer` is the worker's watch, if this is a
        deployment.
        """
        waiting = _waiting(hold, outer)
        messages = await messages_in_span(self.span, call)
        async with self.limiter.slot(call, waiting, rules):
            terms, limiter = call.terms, self.limiter
            sent_s, was_full = time.monotonic(), limiter.is_full or limiter.queued > 0
            limiter.on_sent(terms)
            try:
                with Watch(self.callee.worker, self.health, call) as watch, CallSpan(self.span, self.callee, call, messages) as span:  # fmt: skip
                    if hold is not None:
                        hold.record_callee(self.callee)
                    limits = limits_of(
                        terms,
                        self.health,
                        learns_first_token=self.learns_first_token,
                        learns_pauses=self.learns_pauses,
                    )
                    limits.on_queued = _on_queued(call, watch, outer)
                    limited_call = replace(call, terms=replace(terms, limits=limits))
                    async with self.client.open(limited_call) as reply:
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
    hold_wait = nullcontext() if hold is None else hold.waiting()
    if outer is None:
        return hold_wait
    both = ExitStack()
    both.enter_context(outer.pause())
    both.enter_context(hold_wait)
    return both


def _on_queued(call: Call, watch: Watch, outer: Watch | None) -> Callable[[str], None]:
    def on_queued(why: str) -> None:
        watch.excuse()
        if outer is not None:
            outer.excuse()
        if call.terms.observer is not None:
            call.terms.observer.on_queued(why)

    return on_queued
