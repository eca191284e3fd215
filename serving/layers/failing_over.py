"""Another worker instead, where one fails before its first token."""

import time
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Protocol

from conductor.errors import ContentFiltered, ContextOverflow, LineTooLong, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure, charges
from conductor.model.field_values import copy_with
from conductor.model.reply import Reply
from conductor.model.retries import call_again
from conductor.model.worker import Worker
from serving.health import WorkerHealth
from serving.layers.left_alone import LeftAlone
from serving.layers.limited import Limited
from serving.witnesses import party_of


class State(Protocol):
    """How a worker is doing."""

    @property
    def health(self) -> WorkerHealth:
        """Of its newest calls."""
        ...

    @property
    def limiter(self) -> Limited:
        """Its slots."""
        ...

    @property
    def is_free(self) -> bool:
        """Whether one more call would be sent at once to a worker that is well."""
        ...


class FailingOver:
    """`workers` in turn, the first one's name for all of them. Any `WorkerError` moves on: a bad key fails
    over like an outage.

    One whose circuit is open, or that asked to be left alone, is asked after all others, which is on record;
    once its rest is over, one call tries whether it is well. So is one whose line is too long, which is so sooner where
    another worker would answer at once; a call that waits in it leaves for that one, and comes back where that one fails.
    A call whose turn comes once the circuit has opened is not made either, where another worker is ready.

    Where all of them fail and one could not hold the prompt, that is the error: agents then shorten it.

    A call whose caller has somebody else (`Call.has_stand_in`, as of the conductor's: a worker answers without a plan)
    is made only to those that are well.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        blind: Collection[str] = (),
        toolless: Collection[str] = (),
        pdfless: Collection[str] = (),
        telling: Collection[str] = (),
        states: Mapping[str, State] = MappingProxyType({}),
        chosen: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Knows who sees, who calls tools and who reads PDFs.

        Args:
            workers: in the order in which they are asked.
            blind: the names of those that see no pictures. After a first one that sees they are not asked
                about a picture.
            toolless: the names of those that call no tools. After a first one that does they are not offered
                any.
            pdfless: the names of those that read no PDFs; likewise.
            telling: the names of those whose content filter is told to the client.
            states: how each is doing, by name; one that is not there is taken to be well.
            chosen: how those were chosen, by name, whom no settings name as fallbacks.
        """
        self.name, self._workers = workers[0].name, workers
        self._blind, self._toolless, self._pdfless = frozenset(blind), frozenset(toolless), frozenset(pdfless)
        self._telling, self._states, self._chosen = frozenset(telling), states, chosen

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Worker.open`; `worker` of the reply says who answers, `attempts` why it is not the first,
        `notes` how one was chosen that no settings name.

        Raises:
            WorkerUnavailable: also where nobody was asked, since all rest and the caller has somebody else.
        """
        if state := self._states.get(self.name):
            # Wherever it goes now: else a run that a fallback answers would be expected here to its end.
            state.limiter.arrive(call.site.run)
        async with AsyncExitStack() as opened:
            expected = opened.enter_context(ExitStack())
            line, failed = (
                self._only_those_that_are_well(self._line(call), call)
                if call.has_stand_in
                else self._last_those_that_rest(self._line(call), call)
            )
            passed = {each.worker for each in failed}
            errors: list[WorkerError] = []
            first, begins = call.site.attempt - len(failed), call.begins
            for number, worker in enumerate(line):  # which grows by those that are left alone meanwhile
                began_s = time.monotonic()
                others = line[number + 1 :]
                has_stand_in = call.has_stand_in or any(self._is_free(other, call) for other in others)
                try:
                    site = copy_with(call.site, attempt=first + len(failed))
                    # whatever was paid meanwhile, another line may be shorter
                    made = copy_with(
                        call, site=site, has_stand_in=has_stand_in, begins=begins if others else call.begins
                    )
                    left_to = () if worker.name in passed else others
                    asked = self._ask(worker, made, left_to, expected, may_leave=call.has_stand_in)
                    reply = await opened.enter_async_context(asked)
                    break
                except LeftAlone as left:
                    failed += left.attempts
                    passed.add(worker.name)
                    if not call.has_stand_in:
                        line.append(worker)
                    elif number == len(line) - 1:
                        raise _nobody(self.name, failed) from None
                    for free in [each for each in others if each.name == left.left_for][:1]:
                        line.insert(number + 1, line.pop(line.index(free, number + 1)))
                    is_paid = any(charges(None, left.attempts))
                    waited_s = call.waited_s + left.waited_s
                    call = copy_with(call, begins=call.begins and not is_paid, waited_s=waited_s)
                    first -= 1  # it was not made
                except WorkerError as exc:
                    took_s = time.monotonic() - began_s
                    is_told = isinstance(exc, ContentFiltered) and worker.name in self._telling
                    if number == len(line) - 1 or is_told:
                        raise _last_error(exc, () if is_told else errors, failed, took_s) from exc.__cause__
                    errors.append(exc)
                    call = await call_again(call, exc)
                    failed += [*exc.attempts, Attempt.of(worker.name, Failure.of(exc), took_s=took_s)]
            else:
                raise AssertionError("there is at least one worker")
            expected.close()
            reply.attempts = (*failed, *reply.attempts)
            if how := self._chosen.get(worker.name):
                reply.notes = (f"{worker.name} answers in place of {self.name}: chosen {how}.", *reply.notes)
            yield reply

    def _last_those_that_rest(self, line: list[Worker], call: Call) -> tuple[list[Worker], list[Attempt]]:
        """The line with those at its end that are better left alone, and what is said of that."""
        is_one_free = any(self._is_free(worker, call) for worker in line)
        why = {
            worker.name: said
            for worker in line
            if (said := self._why_not(worker, call, is_other_free=is_one_free))
        }
        ready = [worker for worker in line if worker.name not in why]
        if not ready or not why:
            return line, []
        left = [worker for worker in line if worker.name in why]
        passed = [worker for worker in left if line.index(worker) < line.index(ready[0])]
        self._note_traffic(passed, call)
        return [*ready, *left], [_left_alone(worker.name, why[worker.name]) for worker in passed]

    def _only_those_that_are_well(self, line: list[Worker], call: Call) -> tuple[list[Worker], list[Attempt]]:
        """Likewise without those that rest.

        Raises:
            WorkerUnavailable: that is all of them.
        """
        rests = {worker.name: why for worker in line if (why := self._why_rests(worker))}
        failed = [_left_alone(name, why) for name, why in rests.items()]
        ready = [worker for worker in line if worker.name not in rests]
        self._note_traffic([worker for worker in line if worker.name in rests], call)
        if not ready:
            raise _nobody(self.name, failed)
        return ready, failed

    def _why_rests(self, worker: Worker) -> str:
        state = self._states.get(worker.name)
        return _resting(state.health) if state and state.health.rest_s else ""

    def _note_traffic(self, workers: Sequence[Worker], call: Call) -> None:
        """Whoever is sent elsewhere while they rest calls them too: else whose prompts alone fail would decide for all
        that they rest on.
        """
        for worker in workers:
            if state := self._states.get(worker.name):
                state.health.witnesses.traffic.note(party_of(call))

    def _why_not(self, worker: Worker, call: Call, *, is_other_free: bool = False) -> str:
        """Why it is better left alone, where another one would answer at once or not; empty: it is not."""
        if not (state := self._states.get(worker.name)):
            return ""
        if state.health.rest_s:
            return _resting(state.health)
        if any(worker.name == name for name, _ in call.broken):
            return "because its answer to this call broke off."
        if state.limiter.is_overfull(call.priority, call.payer, is_other_free=is_other_free):
            return f"because its line is {state.limiter.wait_s(call.payer):.1f} s long."
        return ""

    def _is_free(self, worker: Worker, call: Call) -> bool:
        """Whether it would answer at once."""
        if (state := self._states.get(worker.name)) is None:
            return True
        return state.is_free and state.limiter.has_place(call.payer) and not self._why_not(worker, call)

    def _find_free(self, others: Sequence[Worker], call: Call, expected: ExitStack) -> Worker | None:
        """The first of them that would answer at once, which expects the call then: of several that wait, no more leave
        than it has places.
        """
        free = next((other for other in others if self._is_free(other, call)), None)
        if free is not None and (state := self._states.get(free.name)):
            expected.enter_context(state.limiter.expect(call.site.run, call.payer))
        return free

    @asynccontextmanager
    async def _ask(
        self,
        worker: Worker,
        call: Call,
        others: Sequence[Worker],
        expected: ExitStack,
        *,
        may_leave: bool,
    ) -> AsyncGenerator[Reply]:
        """Make the call once its turn has come; whether it is left to `others`, or to whomever else its caller has, is
        looked at again then, and while it waits: one that is free is `expected` to be called. A probe is over with it.
        """
        if not (state := self._states.get(worker.name)):
            async with worker.open(call) as reply:
                yield reply
            return
        health, began_s = state.health, time.monotonic()
        probes_until_s = health.begin_call()
        left_for: Worker | None = None

        def leave() -> bool:
            nonlocal left_for
            left_for = self._find_free(others, call, expected)
            return left_for is not None

        def look_again() -> None:
            nonlocal probes_until_s
            if probes_until_s:
                return
            is_left = may_leave or any(not self._why_not(other, call) for other in others)
            if health.circuit == "open" and is_left:
                took_s = time.monotonic() - began_s
                attempt = _left_alone(worker.name, _resting(health), took_s)
                raise LeftAlone(attempt.message, worker=worker.name, attempts=(attempt,))
            probes_until_s = health.begin_call()

        try:
            made = copy_with(
                call,
                on_turn=look_again,
                on_waited=leave if others else None,
            )
            async with worker.open(made) as reply:
                yield reply
        except LineTooLong as exc:
            if left_for is None:
                raise
            attempt = _left_alone(worker.name, f"because {left_for.name} would answer at once.", exc.waited_s)
            attempts = (*exc.attempts, attempt)
            raise LeftAlone(
                attempt.message,
                worker=worker.name,
                attempts=attempts,
                left_for=left_for.name,
                waited_s=exc.waited_s,
            ) from None
        finally:
            health.end_call(probes_until_s)

    def _line(self, call: Call) -> list[Worker]:
        """Who is asked, in order: only those whom the call's permit allows; only those who see, where the
        first one does and the call shows a picture; likewise for tools and PDFs. Who wrote the newest turn that calls
        tools is first: it alone is given that turn as it was, with what its provider keeps in it.
        """
        if call.site.operation == "embeddings" or call.sampling.options.token_prompt:
            return [self._workers[0]]  # another model's vectors and tokens mean something else
        line = [worker for worker in self._workers if call.permit.allows(worker.name)]
        if call.tools and self.name not in self._toolless:
            line = [worker for worker in line if worker.name not in self._toolless]
        if self.name not in self._blind and any(message.has_image for message in call.messages):
            line = [worker for worker in line if worker.name not in self._blind]
        if self.name not in self._pdfless and any(message.has_pdf for message in call.messages):
            line = [worker for worker in line if worker.name not in self._pdfless]
        writer = next((message.native.worker for message in reversed(call.messages) if message.native), "")
        line.sort(key=lambda worker: worker.name != writer)
        return line or [self._workers[0]]  # who says that it may not be asked


def _resting(health: WorkerHealth) -> str:
    first = health.first_fault
    why = (
        f"its newest calls failed, first with {first.story}"
        if first
        else ("its newest calls failed, it asked for a rest, or its rate here was reached.")
    )
    return f"for {health.rest_s:.1f} s more: {why}"


def _last_error(
    last: WorkerError, earlier: Sequence[WorkerError], failed: Sequence[Attempt], took_s: float
) -> WorkerError:
    """Return the error of a call that all workers failed: that of the `last` one, or else the first of the `earlier` that could
    not hold the prompt. It is billed what the last call was.
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


def _nobody(name: str, failed: Sequence[Attempt]) -> WorkerUnavailable:
    return WorkerUnavailable(failed[-1].message, worker=name, attempts=tuple(failed))


def _left_alone(worker: str, why: str, took_s: float = 0.0) -> Attempt:
    message = f"{worker} was left alone {why}"
    return Attempt(worker, "WorkerUnavailable", message, took_s=took_s, outcome="left_alone")
