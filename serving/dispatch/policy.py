"""Decisions of the dispatcher: which workers are tried, in which order, and what follows a failure.

Nothing here waits, sends or changes anything. Decisions follow from the call, from what was tried, and from the health
and the queues of the workers now.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
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
from conductor.model.terms import Terms
from serving.dispatch.attempts import Attempts, Tries
from serving.dispatch.route import RetryRules, Route
from serving.health import WorkerHealth

QUICK_S = 1.0
"""While another worker is free, a failed call is made again only if its failure and the wait for the next attempt take
less than this together, unless the server says when to come back."""
HEDGE_AFTER = 0.95
"""Part of the newest calls whose first token came sooner: a hedge is sent once a call is later than that
("The Tail at Scale", Dean and Barroso, CACM 56, 2013)."""
HEDGE_KNOWN_CALLS = 20
"""So many first tokens are enough to go by."""
HEDGE_IDLE = 0.5
"""No hedge is sent while more of the slots are in use."""


# Which workers


def candidates(routes: Sequence[Route], call: Call) -> list[Route]:
    """Return the workers that may answer, in order.

    These are the ones that the permit allows. If the first worker sees pictures and the call shows one, only those that
    see; likewise for tools and PDFs. The writer of the newest native turn is first: it alone is given that turn as it
    was. Only the first worker answers what another model's answer would not mean the same for.
    """
    first = routes[0]
    if len(routes) == 1 or call.site.operation == "embeddings" or call.sampling.options.token_prompt:
        return [first]
    permit, profile = call.terms.permit, first.profile
    found = [route for route in routes if permit.allows(route.name)]
    if call.tools and profile.calls_tools is not False:
        found = [route for route in found if route.profile.calls_tools is not False]
    if profile.sees_images and any(message.has_image for message in call.messages):
        found = [route for route in found if route.profile.sees_images]
    if profile.reads_pdfs and any(message.has_pdf for message in call.messages):
        found = [route for route in found if route.profile.reads_pdfs]
    writer = next((message.native.worker for message in reversed(call.messages) if message.native), "")
    found.sort(key=lambda route: route.name != writer)
    return found or [first]  # which says that it may not be called


def order(found: list[Route], call: Call) -> tuple[list[Route], list[Attempt]]:
    """Move workers that should be skipped to the end. Return the order and a record of each skipped one.

    Raises:
        WorkerUnavailable: all are unhealthy, and the caller has a fallback of its own.
    """
    if call.terms.has_fallback:
        return _only_healthy(found, call)
    if len(found) == 1:
        return found, []
    is_one_free = any(is_free(route, call) for route in found)
    why = {
        route.name: reason
        for route in found
        if (reason := skip_reason(route, call, is_other_free=is_one_free))
    }
    ready = [route for route in found if route.name not in why]
    if not ready or not why:
        return found, []
    skipped = [route for route in found if route.name in why]
    before = [route for route in skipped if found.index(route) < found.index(ready[0])]
    _note_traffic(before, call)
    return [*ready, *skipped], [skipped_attempt(route.name, why[route.name]) for route in before]


def _only_healthy(found: list[Route], call: Call) -> tuple[list[Route], list[Attempt]]:
    why = {route.name: rest_reason(route.health) for route in found if route.health.rest_s}
    failed = [skipped_attempt(name, reason) for name, reason in why.items()]
    ready = [route for route in found if route.name not in why]
    _note_traffic([route for route in found if route.name in why], call)
    if not ready:
        raise nobody(found[0].name, failed)
    return ready, failed


def _note_traffic(routes: Sequence[Route], call: Call) -> None:
    """Count rerouted calls as traffic, so that one tenant's failures cannot keep the circuit open for everyone."""
    for route in routes:
        route.health.witnesses.traffic.note(call.terms.tenant)


def skip_reason(route: Route, call: Call, *, is_other_free: bool = False) -> str:
    """Return why to skip this worker, or "" to use it."""
    if route.health.rest_s:
        return rest_reason(route.health)
    terms = call.terms
    if any(route.name == name for name, _ in terms.broken):
        return "because its answer to this call broke off."
    if route.limiter.is_overfull(terms.priority, terms.payer, is_other_free=is_other_free):
        return f"because its line is {route.limiter.wait_s(terms.payer):.1f} s long."
    return ""


def rest_reason(health: WorkerHealth) -> str:
    """Return why an unhealthy worker is skipped."""
    first = health.first_fault
    why = (
        f"its newest calls failed, first with {first.story}"
        if first
        else ("its newest calls failed, it asked for a rest, or its rate here was reached.")
    )
    return f"for {health.rest_s:.1f} s more: {why}"


def is_free(route: Route, call: Call) -> bool:
    """Return whether the worker would answer at once."""
    return route.is_free and route.limiter.has_place(call.terms.payer) and not skip_reason(route, call)


def skipped_attempt(worker: str, why: str, took_s: float = 0.0) -> Attempt:
    """Return the record of a worker that was skipped."""
    message = f"{worker} was left alone {why}"
    return Attempt(worker, "WorkerUnavailable", message, took_s=took_s, outcome="left_alone")


def nobody(name: str, failed: Sequence[Attempt]) -> WorkerUnavailable:
    """Return the error of a call that no worker was sent."""
    return WorkerUnavailable(failed[-1].message, worker=name, attempts=tuple(failed))


# What follows a failure


@dataclass(frozen=True, slots=True)
class Retry:
    """Make the call again at the same worker after `wait_s` seconds."""

    wait_s: float


@dataclass(frozen=True, slots=True)
class Change:
    """Make the call again at the same worker, in another form or with a repair."""

    tries: Tries


@dataclass(frozen=True, slots=True)
class Next:
    """Try the next worker."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Raise the error; `is_final`: whatever failed before."""

    is_final: bool = False


Step = Retry | Change | Next | Stop


@dataclass(frozen=True, slots=True)
class Failed:
    """One failed attempt.

    Args:
        error: why.
        took_s: seconds since it was sent.
        wait_s: seconds that a retry would wait: see `retry_wait_s`.
        has_fallback: whether another worker was free to answer.
        may_retry: whether the retry budget allows one.
    """

    error: WorkerError
    took_s: float
    wait_s: float
    has_fallback: bool
    may_retry: bool = True


def after(failed: Failed, attempts: Attempts, now_s: float) -> Step:
    """Return what follows a failed attempt: a retry, the same worker in another way, the next worker, or the error."""
    error, tries, route = failed.error, attempts.tries, attempts.route
    if not attempts.had_answer and _may_retry(failed, attempts, now_s):
        return Retry(failed.wait_s)
    is_turn_refused = isinstance(error, WorkerRefused) and not isinstance(error, ContentFiltered)
    if tries.form == "prefill" and attempts.call.prefix.strip() and is_turn_refused:
        return Change(Tries("ask", tries.repair))  # perhaps it is the turn at the end that it does not take
    if attempts.wrong is not None and tries.repair is None:
        return Change(Tries(tries.form, attempts.wrong))
    is_reported = isinstance(error, ContentFiltered) and route.profile.reports_filter
    return Stop(is_reported) if is_reported or not attempts.others else Next()


def _may_retry(failed: Failed, attempts: Attempts, now_s: float) -> bool:
    error, tries, route = failed.error, attempts.tries, attempts.route
    if attempts.may_ask_again is not None:
        return attempts.may_ask_again
    rules, retry_after_s = route.retry, _retry_after_s(error)
    is_queue = isinstance(error, LineTooLong)  # it has waited for as long as that is worth it
    if not (error.retryable and failed.may_retry) or is_queue or retry_after_s > rules.max_wait_s:
        return False
    if tries.number >= rules.attempts or failed.wait_s >= longest_wait_s(attempts.call.terms, now_s):
        return False
    if not failed.has_fallback:
        return True
    is_told = retry_after_s > 0 and tries.waited_s + failed.wait_s <= rules.fallback_wait_s
    is_quick = failed.took_s + failed.wait_s < QUICK_S
    is_late = isinstance(error, WorkerUnavailable) and error.only_late
    return (is_told or is_quick) and route.health.circuit == "closed" and not is_late


def retry_wait_s(number: int, error: WorkerError, rules: RetryRules) -> float:
    """Return how long to wait before the next attempt: full jitter under a doubling bound
    (https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter), and at least `Retry-After`.
    """
    bound_s = min(rules.max_wait_s, rules.first_wait_s * 2 ** (number - 1))
    return max(_retry_after_s(error), random.uniform(0, bound_s))


def longest_wait_s(terms: Terms, now_s: float) -> float:
    """Return the longest wait: half of the caller's time, so that the rest is enough for the call or for a fallback."""
    return inf if terms.deadline_at_s is None else (terms.deadline_at_s - now_s) / 2


def may_ask_again(call: Call, tries: Tries, rules: RetryRules, *, took_s: float, has_fallback: bool) -> bool:
    """Return whether an answer without a word, which took so long, is asked for once more."""
    longest_s = QUICK_S if has_fallback else longest_wait_s(call.terms, time.monotonic())
    return not tries.was_empty and took_s < longest_s and tries.number < rules.attempts


def should_say_more(call: Call) -> bool:
    """Return whether an answer without a word is odd: nothing is before it that may be all that there is to say, and
    nothing that it may have been cut by.
    """
    is_begun = call.prefix or call.messages[-1].role != "user"
    return call.site.operation in ("chat", "plan") and not (call.sampling.stop or is_begun)


def _retry_after_s(error: WorkerError) -> float:
    return (error.retry_after_s or 0.0) if isinstance(error, WorkerBusy) else 0.0


def hedge_after_s(route: Route, call: Call) -> float | None:
    """Return when a hedge is sent, in seconds, or None for never."""
    if route.hedge_budget is None or call.terms.holds is None or call.site.operation == "embeddings":
        return None
    if route.health.first_tokens < HEDGE_KNOWN_CALLS or not can_hedge(route):
        return None
    return route.health.first_token_s(HEDGE_AFTER)


def can_hedge(route: Route) -> bool:
    """Return whether the worker is healthy and has idle slots."""
    return route.limiter.has_idle(HEDGE_IDLE, 1) and route.health.circuit == "closed"


def last_error(
    last: WorkerError, earlier: Sequence[WorkerError], failed: Sequence[Attempt], took_s: float
) -> WorkerError:
    """Return the error of a call that all workers failed: the `last` one, or the first of the `earlier` that could not
    hold the prompt, because agents shorten it then. It is billed as the last call was.
    """
    overflow = next((each for each in earlier if isinstance(each, ContextOverflow)), None)
    if overflow is None:
        last.attempts = (*failed, *last.attempts)
        return last
    unpaid = replace(Failure.of(last), usage=None, cost_usd=None)
    attempt = Attempt.of(last.worker or "", unpaid, took_s=took_s)
    return ContextOverflow(
        overflow.message,
        worker=overflow.worker,
        detail=overflow.detail,
        provider_status=overflow.provider_status,
        attempts=(*failed, *last.attempts, attempt),
        usage=last.usage,
        cost_usd=last.cost_usd,
        billed_at_bound=last.billed_at_bound,
        streamed_bytes=last.streamed_bytes,
        sent_bytes=last.sent_bytes,
    )
