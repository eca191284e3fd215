"""Dispatch of a call: a loop over attempts until a worker answers or no worker is left.

`policy.py` makes the decisions, and `Route` and `Target` make one attempt. This loop bills and records failed
attempts, waits between them, and adapts the call to the next worker.
"""

import dataclasses
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, aclosing, asynccontextmanager, suppress
from functools import partial
from types import MappingProxyType

from msgspec.structs import replace

from conductor.errors import (
    ContextOverflow,
    LineTooLong,
    QuestionRejected,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.reply import Reply
from conductor.model.terms import AttemptLimits
from conductor.run.plan_record import charges
from serving.dispatch import policy
from serving.dispatch.continuation import Continuation, form_of
from serving.dispatch.hedging import Race
from serving.dispatch.limiter import CallSkipped, QueueRules
from serving.dispatch.model_parameters import fit, limit_effort
from serving.dispatch.policy import Attempts, WorkerAttempts
from serving.dispatch.route import Route, call_again
from serving.dispatch.stop_sequences import cut_at
from serving.dispatch.structured_output import Repair, ask_for_form, invalid_answer, note_fault, read_whole
from serving.redaction.texts import RUN_TEXTS


class Dispatcher:
    """Worker and its fallbacks as one worker. Implements `conductor.model.worker.Worker`.

    After a `WorkerError` before the first token, the call is retried at the same worker or fails over to the
    next one. A rejected API key causes a failover, like an outage.

    Some workers are tried last, which the record of the run shows:

    - An unhealthy worker. When its circuit allows it again, one call probes it.
    - A worker whose queue is too long. The limit is shorter while another worker could answer immediately.

    A queued call moves to another worker as soon as that one could answer immediately. It comes back if the
    other worker fails. If a worker becomes unhealthy while a call waits for its slot, the call goes to
    another worker that is ready.

    If a worker rejects the prompt as too long, workers whose context is not longer are not called. If all workers
    fail and one of them rejected the prompt as too long, `ContextOverflow` is raised, because agents respond to it
    by shortening the prompt.
    """

    def __init__(
        self,
        routes: Sequence[Route],
        fallback_reasons: Mapping[str, str] = MappingProxyType({}),
        before: Sequence[Route] = (),
    ) -> None:
        """Create the dispatcher of `routes[0]` and its fallbacks. `before` are called first, except with tools."""
        self.name, self._routes, self._fallback_reasons = routes[0].name, tuple(routes), fallback_reasons
        self._before = tuple(before)

    @property
    def is_free(self) -> bool:
        """True if one of the workers can send a call immediately."""
        return any(route.is_free for route in self._routes)

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """Open a reply from the first worker that answers. See `Worker.open`.

        In the reply, `worker` is the worker that answers, and `attempts` lists the earlier attempts that
        failed or were skipped. If an automatically chosen fallback answers, one of the `notes` gives the
        reason for the choice.
        """
        # Before the choice of a worker: otherwise the first one would expect a run that a fallback answers.
        self._routes[0].limiter.arrive(call.site.run)
        is_new = call.site.operation == "chat" and not (call.tools or call.prefix)
        before = [each for each in self._before if is_new and call.terms.permit.allows(each.name)]
        queue, skipped = policy.order([*before, *policy.candidates(self._routes, call)], call)
        attempts = Attempts(
            call,
            queue,
            skipped,
            call.terms.is_first_paid_call,
            skipped={each.worker for each in skipped},
            n_not_made=len(skipped),
        )
        async with AsyncExitStack() as opened:
            with ExitStack() as expected:
                reply = await self._answer(opened, expected, attempts)
            reply.attempts = (*attempts.failures, *reply.attempts)
            if how := self._fallback_reasons.get(attempts.route.name):
                note = f"{attempts.route.name} answered in place of {self.name}. Podium chose this fallback {how}."
                reply.notes = (note, *reply.notes)
            yield reply
        if (run_texts := RUN_TEXTS.get()) is not None:
            answer = "".join(reply.texts), "".join(reply.thoughts), tuple(reply.tool_calls)
            await run_texts.learn_in_turns(answer)

    async def _answer(self, opened: AsyncExitStack, expected: ExitStack, attempts: Attempts) -> Reply:
        opened.callback(_leave, attempts)
        _enter(attempts)
        while True:
            has_fallback = attempts.call.terms.has_fallback or any(
                policy.is_free(route, attempts.call) for route in attempts.others
            )
            began_s = time.monotonic()
            try:
                async with AsyncExitStack() as stack:
                    reply = await _try(stack, expected, attempts, has_fallback=has_fallback)
                    opened.push_async_exit(stack.pop_all())
                    return reply
            except CallSkipped as exc:
                self._skip(attempts, exc)
            except WorkerError as exc:
                rules, took_s = attempts.route.retry, time.monotonic() - began_s
                wait_s = policy.retry_wait_s(attempts.worker_attempts.number, exc, rules)
                await _go_on(attempts, policy.FailedAttempt(exc, took_s, wait_s, has_fallback))

    def _skip(self, attempts: Attempts, skip: CallSkipped) -> None:
        """Move the current worker to the end of the queue. Raise WorkerUnavailable if none is left and the
        caller has a fallback.
        """
        route, terms = attempts.route, attempts.call.terms
        attempts.failures += skip.attempts
        attempts.n_not_made += 1
        attempts.skipped.add(route.name)
        if not terms.has_fallback:
            attempts.queue.append(route)
        elif not attempts.others:
            raise policy.no_worker_left(self.name, attempts.failures) from None
        if skip.skipped_for:
            attempts.bring_forward(skip.skipped_for)
        if any(charges(None, skip.attempts)):
            attempts.call = replace(attempts.call, terms=replace(terms, is_first_paid_call=False))
        attempts.waited_s += skip.waited_s
        _move_on(attempts)


async def _go_on(attempts: Attempts, failure: policy.FailedAttempt) -> None:
    """Bill a failed attempt, wait, and prepare the next one, or raise if there is none or no budget."""
    route, error = attempts.route, failure.error
    if isinstance(error, ContextOverflow):
        policy.drop_too_short(attempts)
    action = policy.next_action(failure, attempts, time.monotonic())
    if (
        isinstance(action, policy.Retry)
        and attempts.may_ask_again is None
        and not _spend(route, attempts.call)
    ):
        action = policy.next_action(dataclasses.replace(failure, may_retry=False), attempts, time.monotonic())
    if isinstance(action, policy.Stop):
        earlier = () if action.is_final else attempts.errors
        raise policy.last_error(error, earlier, attempts.failures, failure.took_s) from error.__cause__
    wait_s = action.wait_s if isinstance(action, policy.Retry) else 0.0
    if isinstance(error, LineTooLong):
        attempts.waited_s += error.waited_s
    holds = attempts.call.terms.holds
    attempts.call = await call_again(attempts.call, holds.hold() if holds else None, error, wait_s)
    attempt = Attempt.of(route.name, Failure.of(error), waited_s=wait_s, took_s=failure.took_s)
    attempts.failures += [*error.attempts, replace(attempt, deployment=attempts.deployment)]
    match action:
        case policy.Retry():
            attempts.worker_attempts.waited_s += wait_s
            attempts.worker_attempts.was_empty |= attempts.may_ask_again is not None
        case policy.Change(tries):
            _start(attempts, tries)
        case policy.Next():
            attempts.errors.append(error)
            _move_on(attempts)


async def _try(
    stack: AsyncExitStack, expected: ExitStack, attempts: Attempts, *, has_fallback: bool
) -> Reply:
    """Make one attempt, maybe with a hedge for a late first token, and return the reply once its format is
    checked.

    `stack` closes the attempt, `expected` the slot that is reserved at another worker if the call moves
    there.
    """
    route, tries, call, terms = attempts.route, attempts.worker_attempts, attempts.call, attempts.call.terms
    tries.number += 1
    attempts.had_answer, attempts.deployment = False, ""
    attempts.invalid_answer = attempts.may_ask_again = None
    _check_allowed(attempts)
    began_s, answer_format = time.monotonic(), call.answer_format
    call, notes = _shape(route, call, tries)
    is_continued = tries.form != "plain" or terms.rest_tokens is not None
    continuation = Continuation.of(call, tries.form) if is_continued else None
    adapted_call, fit_notes = continuation.adapted_call if continuation else call, ()
    if route.profile.accepts is not None:
        adapted_call, fit_notes = fit(adapted_call, route.profile.accepts, route.profile.model)
    own_stops = tuple(stop for stop in call.sampling.stop if stop not in adapted_call.sampling.stop)
    # With other workers left, a long queue may still reject a run that has already paid.
    is_first_paid_call = attempts.is_first_paid_call if attempts.others else terms.is_first_paid_call
    adapted_call = replace(
        adapted_call,
        site=replace(call.site, attempt=attempts.number),
        terms=replace(
            terms,
            has_fallback=has_fallback,
            is_first_paid_call=is_first_paid_call,
            limits=AttemptLimits(places=tries.places),
        ),
    )
    if terms.refusals is not None and tries.form != "prefill":  # a prefill may be refused for its form alone
        stack.push(partial(_note_refusal, route.name, adapted_call))
    reply = await _send(stack, expected, attempts, adapted_call)
    attempts.deployment = reply.deployment
    if reply.is_empty and policy.is_empty_answer_failure(adapted_call):
        took_s = time.monotonic() - began_s
        may_ask_again = policy.may_ask_again(
            call, tries, route.retry, took_s=took_s, has_fallback=has_fallback
        )
        attempts.may_ask_again = may_ask_again and _spend(route, call)
        if attempts.may_ask_again or has_fallback:
            raise await _close_empty(reply, stack)
        attempts.may_ask_again = None
    attempts.had_answer = True
    reply.notes = (*fit_notes, *reply.notes)
    if own_stops:
        cut = cut_at(own_stops, reply.deltas, terms.deadline_at_s)
        reply.deltas = await stack.enter_async_context(aclosing(cut))
    if continuation:
        await continuation.join(stack, reply)
    if answer_format is None:
        return reply
    if not answer_format.strict:
        noted = note_fault(reply.deltas, answer_format)
        reply.notes, reply.deltas = (*notes, *reply.notes), await stack.enter_async_context(aclosing(noted))
        return reply
    whole, fault = await read_whole(reply, answer_format)
    await stack.aclose()
    if fault is not None:
        attempts.invalid_answer = Repair("".join(reply.texts), fault)
        raise invalid_answer(reply, fault)
    whole.notes = (*notes, *whole.notes)
    return whole


def _check_allowed(attempts: Attempts) -> None:
    """Check that the permit allows the worker, that it has not refused in this run, and that its retry budget
    allows a restart. Raise otherwise.
    """
    route, tries, terms = attempts.route, attempts.worker_attempts, attempts.call.terms
    if not terms.permit.allows(route.name):
        message = f"This run may not call worker {route.name}."
        raise WorkerRefused(message, worker=route.name, every_call=True)
    is_broken = any(route.name == name for name, _ in terms.broken)
    if tries.number == 1 and is_broken and not _spend(route, attempts.call):
        attempts.had_answer = True  # no further attempt
        message = f"{route.name} stopped in the middle of its answer, and its retry budget is exhausted."
        raise WorkerUnavailable(message, worker=route.name)
    if terms.refusals is None or tries.form == "prefill":
        return
    if earlier := terms.refusals.earlier(route.name, attempts.call.site.operation):
        raise earlier


def _shape(route: Route, call: Call, tries: WorkerAttempts) -> tuple[Call, tuple[str, ...]]:
    """Limit the reasoning effort to the permit, and translate the answer format. Return call and notes."""
    profile, most = route.profile, call.terms.permit.max_effort
    if most is not None:
        effort = limit_effort(call.sampling.effort, most, profile.default_effort)
        call = replace(call, sampling=replace(call.sampling, effort=effort))
    if call.answer_format is None:
        return call, ()
    return ask_for_form(call, profile.translate, tries.repair)


async def _send(stack: AsyncExitStack, expected: ExitStack, attempts: Attempts, call: Call) -> Reply:
    """Send the call, and a hedge if it is late. Raise CallSkipped if it left the queue, or the circuit opened."""
    route, health, began_s = attempts.route, attempts.route.health, time.monotonic()
    caller_has_fallback = attempts.call.terms.has_fallback
    left_to = [] if route.name in attempts.skipped else attempts.others
    leaves_for: Route | None = None

    def may_leave() -> bool:
        nonlocal leaves_for
        leaves_for = next((other for other in left_to if policy.is_free(other, call)), None)
        if leaves_for is not None:
            # Reserve the slot, so that no more calls leave than the other worker has slots.
            expected.enter_context(leaves_for.limiter.expect(call.site.run, call.terms.payer))
        return leaves_for is not None

    def on_turn() -> None:
        if attempts.probes_until_s:
            return
        is_left = caller_has_fallback or any(not policy.skip_reason(other, call) for other in left_to)
        if health.circuit == "open" and is_left:
            took_s = time.monotonic() - began_s
            attempt = policy.attempt_of_skipped(route.name, policy.unhealthy_reason(route), took_s)
            raise CallSkipped(attempt.message, worker=route.name, attempts=(attempt,))
        attempts.probes_until_s = health.begin_call()

    holds, after_s = call.terms.holds, policy.hedge_after_s(route, call)
    if route.hedge_budget is not None:
        route.hedge_budget.earn()
    rules = QueueRules(attempts.waited_s, on_turn, may_leave if left_to else None)
    try:
        if holds is None or after_s is None:
            hold = holds.hold() if holds else None
            opening = route.open(call, hold, rules)
        else:
            race = Race(route, call, holds, rules)
            opening = race.run(after_s)
        return await stack.enter_async_context(opening)
    except LineTooLong as exc:
        if leaves_for is None:
            raise
        why = f"{route.name} was skipped because {leaves_for.name} can answer immediately."
        attempt = policy.attempt_of_skipped(route.name, why, exc.waited_s)
        raise CallSkipped(
            attempt.message,
            worker=route.name,
            attempts=(*exc.attempts, attempt),
            skipped_for=leaves_for.name,
            waited_s=exc.waited_s,
        ) from None


def _note_refusal(worker: str, call: Call, _: object, error: BaseException | None, __: object) -> None:
    """Record a refusal at the end of an attempt, so that the run does not call the worker again."""
    refusals = call.terms.refusals
    if refusals is not None and isinstance(error, WorkerRefused) and not isinstance(error, QuestionRejected):
        refusals.add(worker, call.site.operation, error)


def _enter(attempts: Attempts) -> None:
    """Start with the current worker."""
    attempts.probes_until_s = attempts.route.health.begin_call()
    call = attempts.call
    form = form_of(call, attempts.route.profile.prefills) if call.prefix else "plain"
    _start(attempts, WorkerAttempts(form))


def _start(attempts: Attempts, tries: WorkerAttempts) -> None:
    """Start the attempts in a form of the call, with a share of the retry budget unless it continues."""
    attempts.worker_attempts = tries
    budget, terms = attempts.route.retry_budget, attempts.call.terms
    if budget is not None and not terms.broken:  # otherwise a broken answer would pay for its own retry
        budget.earn(terms.tenant)


def _move_on(attempts: Attempts) -> None:
    _leave(attempts)
    attempts.index += 1
    _enter(attempts)


def _leave(attempts: Attempts) -> None:
    """Leave the current worker. If the call was the probe of an open circuit, end the probe."""
    attempts.route.health.end_call(attempts.probes_until_s)


def _spend(route: Route, call: Call) -> bool:
    """Take one retry from the worker's retry budget. Return False if the budget does not allow it."""
    return route.retry_budget is None or route.retry_budget.spend(call.terms.tenant)


async def _close_empty(reply: Reply, stack: AsyncExitStack) -> WorkerUnavailable:
    """Read an empty answer to its end for its usage, close it, and return an error with its cost."""
    try:
        with suppress(WorkerError):  # the answer is already known to be empty
            async with aclosing(aiter(reply)) as deltas:
                async for _ in deltas:
                    pass
    finally:
        await stack.aclose()
    error = WorkerUnavailable(
        f"{reply.worker} returned an empty answer.", worker=reply.worker, only_this_call=True
    )
    reply.charge(error)
    return error
