"""Decisions of the dispatcher: which workers to try, in which order, and what to do after a failure.

`Attempts` is the state of one call: which workers were tried, and which are left. The functions of this
module neither wait nor send. Their decisions depend on the call, on earlier attempts, and on the current
health and queues of the workers.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf

from msgspec.structs import replace

from conductor.errors import (
    ContentFiltered,
    ContextOverflow,
    LineTooLong,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.terms import Places, Terms
from conductor.run.call_bound import input_estimate
from serving.dispatch.continuation import Form
from serving.dispatch.route import RetryRules, Route
from serving.dispatch.structured_output import Repair


@dataclass(slots=True, eq=False)
class WorkerAttempts:
    """Attempts at one worker, in the form of the call, and with an invalid answer to repair, if any."""

    form: Form = "plain"
    repair: Repair | None = None
    number: int = 0
    """Number of attempts made."""
    waited_s: float = 0.0
    """Total wait before the attempts, in seconds."""
    was_empty: bool = False
    """True if one of the attempts returned an empty answer."""
    places: Places = field(default_factory=Places)
    """Deployments or replicas to which the call was sent."""


@dataclass(slots=True, eq=False)
class Attempts:
    """All attempts at one call.

    Args:
        call: call for the next attempt. A failure may lower its output limit.
        queue: workers in the order in which they are tried. A worker that is skipped for now is appended once
            more.
        failures: attempts that failed or were skipped, for the record of the run, oldest first.
        is_first_paid_call: whether the run had not paid for a worker's answer before this call.
    """

    call: Call
    queue: list[Route]
    failures: list[Attempt]
    is_first_paid_call: bool
    index: int = 0
    """Index of the current worker."""
    errors: list[WorkerError] = field(default_factory=list[WorkerError])
    """Errors of earlier workers."""
    skipped: set[str] = field(default_factory=set[str])
    """Names of the workers that were skipped once. They are not skipped again."""
    n_not_made: int = 0
    """Number of entries in `failures` that record a skipped worker, to which no call was sent."""
    waited_s: float = 0.0
    """Seconds that the call has waited in queues that it then left."""
    worker_attempts: WorkerAttempts = field(default_factory=WorkerAttempts)
    probes_until_s: float = 0.0
    """See `WorkerHealth.begin_call`."""
    had_answer: bool = False
    """True if the newest attempt returned an answer. If the attempt still failed, its answer was not usable.
    """
    invalid_answer: Repair | None = None
    """Answer of the newest attempt if it does not match the requested format, or None."""
    may_ask_again: bool | None = None
    """Whether to retry after the newest attempt returned an empty answer. None if it did not."""
    deployment: str = ""
    """Deployment of the newest answer. Empty if there was no answer, or if the worker has no deployments."""

    @property
    def route(self) -> Route:
        return self.queue[self.index]

    @property
    def others(self) -> list[Route]:
        """Workers after the current one."""
        return self.queue[self.index + 1 :]

    @property
    def number(self) -> int:
        return self.call.site.attempt + len(self.failures) - self.n_not_made

    def bring_forward(self, name: str) -> None:
        """Make a worker the next one to try, if it is still in the queue."""
        for free in [each for each in self.others if each.name == name][:1]:
            del self.queue[self.queue.index(free, self.index + 1)]
            self.queue.insert(self.index + 1, free)


QUICK_S = 1.0
"""Maximum seconds of an attempt and its wait while another worker is free, unless `Retry-After` is longer."""
HEDGE_AFTER = 0.95
"""Quantile of the worker's recent times to the first token. A call that has waited longer gets a hedge
("The Tail at Scale", Dean and Barroso, CACM 56, 2013)."""
HEDGE_KNOWN_CALLS = 20
"""Minimum number of measured first tokens of a worker before its calls are hedged."""


# Which workers


def candidates(routes: Sequence[Route], call: Call) -> list[Route]:
    """Return the workers that may answer, in order.

    - Only workers that the permit allows.
    - If the call has images and the first worker sees images, only workers that do. The same applies to tools
      and PDFs.
    - The worker that wrote the newest turn in its provider's own format is first, because that turn is sent
      unchanged only to the worker that wrote it.
    - Embeddings and token prompts go to the first worker only, because they depend on its model.
    - Fallbacks whose context is too short for the prompt and the answer are left out. The first worker is not, because
      the prompt's tokens are only estimated.
    """
    first = routes[0]
    if len(routes) == 1 or call.site.operation == "embeddings" or call.sampling.options.token_prompt:
        return [first]
    permit, profile = call.terms.permit, first.profile
    eligible = [route for route in routes if permit.allows(route.name)]
    if call.tools and profile.calls_tools is not False:
        eligible = [route for route in eligible if route.profile.calls_tools is not False]
    if profile.sees_images and any(message.has_image for message in call.messages):
        eligible = [route for route in eligible if route.profile.sees_images]
    if profile.reads_pdfs and any(message.has_pdf for message in call.messages):
        eligible = [route for route in eligible if route.profile.reads_pdfs]
    if any(route.profile.context_tokens for route in eligible if route is not first):
        tokens = input_estimate(call) + call.terms.answer_tokens
        eligible = [each for each in eligible if each is first or _context_tokens(each) >= tokens]
    writer = next((message.native.worker for message in reversed(call.messages) if message.native), "")
    eligible.sort(key=lambda route: route.name != writer)
    return eligible or [first]  # the attempt raises that the run may not call it


def _context_tokens(route: Route) -> float:
    """Return the context length of the worker's model, or infinity if it is unknown."""
    return route.profile.context_tokens or inf


def order(eligible: list[Route], call: Call) -> tuple[list[Route], list[Attempt]]:
    """Return the order with workers to skip at its end, and a record of each. If all are unhealthy and the
    caller has a fallback, raise WorkerUnavailable.
    """
    if call.terms.has_fallback:
        return _only_healthy(eligible, call)
    if len(eligible) == 1:
        return eligible, []
    is_one_free = any(is_free(route, call) for route in eligible)
    why = {
        route.name: reason
        for route in eligible
        if (reason := skip_reason(route, call, is_other_free=is_one_free))
    }
    ready = [route for route in eligible if route.name not in why]
    if not ready or not why:
        return eligible, []
    skipped = [route for route in eligible if route.name in why]
    before = [route for route in skipped if eligible.index(route) < eligible.index(ready[0])]
    _note_traffic(before, call)
    return [*ready, *skipped], [attempt_of_skipped(route.name, why[route.name]) for route in before]


def _only_healthy(eligible: list[Route], call: Call) -> tuple[list[Route], list[Attempt]]:
    why = {route.name: unhealthy_reason(route) for route in eligible if route.health.skip_s}
    skips = [attempt_of_skipped(name, reason) for name, reason in why.items()]
    ready = [route for route in eligible if route.name not in why]
    _note_traffic([route for route in eligible if route.name in why], call)
    if not ready:
        raise no_worker_left(eligible[0].name, skips)
    return ready, skips


def _note_traffic(routes: Sequence[Route], call: Call) -> None:
    """Count rerouted calls as traffic, so that one tenant's failures cannot keep the circuit open for
    everyone.
    """
    for route in routes:
        route.health.witnesses.traffic.note(call.terms.tenant)


def skip_reason(route: Route, call: Call, *, is_other_free: bool = False) -> str:
    """Return a sentence that says why to skip this worker, or "" to use it."""
    if route.health.skip_s:
        return unhealthy_reason(route)
    terms = call.terms
    if any(route.name == name for name, _ in terms.broken):
        return f"{route.name} was skipped because it stopped in the middle of an answer to this call."
    if route.limiter.is_overfull(terms.priority, terms.payer, is_other_free=is_other_free):
        wait_s = route.limiter.wait_s(terms.payer)
        return f"{route.name} was skipped because the estimated wait in its queue is {wait_s:.1f} s."
    return ""


def unhealthy_reason(route: Route) -> str:
    """Return a sentence that says why an unhealthy worker is skipped."""
    health, skipped = route.health, f"{route.name} was skipped because its latest calls failed"
    again = f"It will be tried again in {health.skip_s:.1f} s."
    if first := health.first_fault:
        return f"{skipped}. {again} First failure: {first.description}"
    return f"{skipped}, it sent Retry-After, or it reached a local rate limit. {again}"


def is_free(route: Route, call: Call) -> bool:
    """Return whether the worker can answer immediately."""
    return route.is_free and route.limiter.has_place(call.terms.payer) and not skip_reason(route, call)


def attempt_of_skipped(worker: str, message: str, took_s: float = 0.0) -> Attempt:
    """Return the record of a worker that was skipped. `message` says why."""
    return Attempt(worker, "WorkerUnavailable", message, took_s=took_s, outcome="left_alone")


def no_worker_left(name: str, failures: Sequence[Attempt]) -> WorkerUnavailable:
    """Return the error for a call that could be sent to no worker."""
    return WorkerUnavailable(failures[-1].message, worker=name, attempts=tuple(failures))


# What follows a failure


@dataclass(frozen=True, slots=True)
class Retry:
    """Decision to retry at the same worker after `wait_s` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """Decision to try the same worker again, with the call in another form or with its invalid answer to repair."""

    worker_attempts: WorkerAttempts


@dataclass(frozen=True, slots=True)
class Next:
    """Decision to try the next worker."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Decision to raise the error of the attempt. If `is_final`, an error of an earlier worker cannot replace it."""

    is_final: bool = False


Action = Retry | Change | Next | Stop


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """One failed attempt.

    Args:
        wait_s: wait before a retry in seconds. See `retry_wait_s`.
        has_fallback: whether another worker was free to answer.
        may_retry: whether the retry budget allows a retry.
    """

    error: WorkerError
    took_s: float
    wait_s: float
    has_fallback: bool
    may_retry: bool = True


def drop_too_short(attempts: Attempts) -> None:
    """Remove the workers whose context is at most as long as that of the current worker, which was too short."""
    tokens = attempts.route.profile.context_tokens
    if tokens is not None:
        attempts.queue[attempts.index + 1 :] = [
            each for each in attempts.others if _context_tokens(each) > tokens
        ]


def next_action(failure: FailedAttempt, attempts: Attempts, now_s: float) -> Action:
    """Return what follows a failed attempt: a retry, a changed call, the next worker, or its error."""
    error, tries, route = failure.error, attempts.worker_attempts, attempts.route
    if not attempts.had_answer and _may_retry(failure, attempts, now_s):
        return Retry(failure.wait_s)
    is_turn_refused = isinstance(error, WorkerRefused) and not isinstance(error, ContentFiltered)
    if tries.form == "prefill" and attempts.call.prefix.strip() and is_turn_refused:
        # the worker may reject only the assistant turn at the end
        return Change(WorkerAttempts("ask", tries.repair))
    if attempts.invalid_answer is not None and tries.repair is None:
        return Change(WorkerAttempts(tries.form, attempts.invalid_answer))
    is_reported = isinstance(error, ContentFiltered) and route.profile.reports_filter
    return Stop(is_reported) if is_reported or not attempts.others else Next()


def _may_retry(failure: FailedAttempt, attempts: Attempts, now_s: float) -> bool:
    error, tries, route = failure.error, attempts.worker_attempts, attempts.route
    if attempts.may_ask_again is not None:
        return attempts.may_ask_again
    rules, retry_after_s = route.retry, _retry_after_s(error)
    is_queue = isinstance(error, LineTooLong)  # it has already waited for the maximum time
    if not (error.retryable and failure.may_retry) or is_queue or retry_after_s > rules.max_wait_s:
        return False
    if tries.number >= rules.attempts or failure.wait_s >= longest_wait_s(attempts.call.terms, now_s):
        return False
    if not failure.has_fallback:
        return True
    is_announced = retry_after_s > 0 and tries.waited_s + failure.wait_s <= rules.fallback_wait_s
    is_quick = failure.took_s + failure.wait_s < QUICK_S
    is_late = isinstance(error, WorkerUnavailable) and error.only_late
    return (is_announced or is_quick) and route.health.circuit == "closed" and not is_late


def retry_wait_s(number: int, error: WorkerError, rules: RetryRules) -> float:
    """Return the wait before the next attempt, in seconds: exponential backoff with full jitter
    (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter), and at least
    `Retry-After`.
    """
    bound_s = min(rules.max_wait_s, rules.first_wait_s * 2 ** (number - 1))
    return max(_retry_after_s(error), random.uniform(0, bound_s))


def longest_wait_s(terms: Terms, now_s: float) -> float:
    """Return how many seconds a retry may wait: half of the time until the caller's deadline.

    The other half is for the call or a fallback.
    """
    return inf if terms.deadline_at_s is None else (terms.deadline_at_s - now_s) / 2


def may_ask_again(
    call: Call, tries: WorkerAttempts, rules: RetryRules, *, took_s: float, has_fallback: bool
) -> bool:
    """Return whether to retry a call after an empty answer that took `took_s` seconds."""
    longest_s = QUICK_S if has_fallback else longest_wait_s(call.terms, time.monotonic())
    return not tries.was_empty and took_s < longest_s and tries.number < rules.attempts


def is_empty_answer_failure(call: Call) -> bool:
    """Return whether an empty answer is a failure. With stop sequences, or text to continue, it can be
    correct.
    """
    is_begun = call.prefix or call.messages[-1].role != "user"
    return call.site.operation in ("chat", "plan") and not (call.sampling.stop or is_begun)


def _retry_after_s(error: WorkerError) -> float:
    return (error.retry_after_s or 0.0) if isinstance(error, WorkerBusy) else 0.0


def hedge_after_s(route: Route, call: Call) -> float | None:
    """Return the delay after which to send a hedge, in seconds, or None to send none."""
    if route.hedge_budget is None or call.terms.holds is None or call.site.operation == "embeddings":
        return None
    if route.health.first_tokens < HEDGE_KNOWN_CALLS or not can_hedge(route):
        return None
    return route.health.first_token_s(HEDGE_AFTER)


def can_hedge(route: Route) -> bool:
    """Return whether the worker is healthy and has idle slots."""
    return route.limiter.has_idle and route.health.circuit == "closed"


def last_error(
    last: WorkerError, earlier: Sequence[WorkerError], failures: Sequence[Attempt], took_s: float
) -> WorkerError:
    """Return the error if every worker failed: the first `ContextOverflow`, to which agents respond by
    shortening the prompt, or else the last error.
    """
    overflow = next((each for each in earlier if isinstance(each, ContextOverflow)), None)
    if overflow is None:
        last.attempts = (*failures, *last.attempts)
        return last
    unpaid = replace(Failure.of(last), usage=None, cost_usd=None)
    attempt = Attempt.of(last.worker or "", unpaid, took_s=took_s)
    return ContextOverflow(
        overflow.message,
        worker=overflow.worker,
        detail=overflow.detail,
        provider_status=overflow.provider_status,
        attempts=(*failures, *last.attempts, attempt),
        usage=last.usage,
        cost_usd=last.cost_usd,
        billed_at_bound=last.billed_at_bound,
        streamed_bytes=last.streamed_bytes,
        sent_bytes=last.sent_bytes,
    )
