"""Execution of a plan while it is still being written.

Each step is a task that waits for the outputs that it reads. Steps read only earlier steps, so no scheduler is
needed. The last step is known when the plan's text ends. From then on, its answer streams to the client. Steps
that it does not need are cancelled.
"""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterable, Callable, Collection
from functools import partial
from itertools import takewhile

from msgspec.structs import replace

from conductor.errors import BudgetExceeded, PodiumError, WorkerError, internal_error
from conductor.model.call import Call
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import PendingCall
from conductor.model.reply import CallResult, Reply
from conductor.plan.plan import Plan, Step
from conductor.plan.prompt_parts import EchoFilter, fit, omission_notes
from conductor.plan.prompts import OUTPUT, WorkerPrompt, describe_failure
from conductor.run.call_holds import open_call
from conductor.run.events import (
    StepAborted,
    StepContinued,
    StepFinished,
    StepFirstToken,
    StepOutcome,
    StepPlanned,
    StepRestarted,
    StepReused,
    StepStarted,
    StepWaits,
)
from conductor.run.follow_up import likely_prompt
from conductor.run.partial_answer import Breaks, PartialAnswer, may_continue, may_restart, outlasts_silence
from conductor.run.plan_record import PlanRecord, StepRecord, StepStatus
from conductor.run.record import Record
from conductor.run.run import RunContext, wait_until_done
from conductor.run.steps import StepCalls, StepWords
from conductor.run.turns import conversation

ECHO_NOTE = "The answer repeated delimiter tags of its prompt, which were removed."


def plans_before_restart(record: Record, index: int) -> list[PlanRecord]:
    """Return the interrupted plans that the plan at `index` replaces, newest first."""
    return list(takewhile(lambda plan: plan.is_interrupted, reversed(record.plans[:index])))


class StepsWait(Exception):
    """A step cannot continue before tool results arrive for it, or for a step that it reads."""


class PlanRun:
    """Execution of one plan, from the first step that is written to the output of the last step.

    Args:
        live: whether the last step's text streams to the client.
    """

    def __init__(self, context: RunContext, index: int, *, live: bool) -> None:
        self._context, self._index = context, index
        self._words = StepWords(context, index, live=live)
        self._calls = StepCalls(context, index, self._words)
        self._interrupted = plans_before_restart(context.log.record, index)
        self._steps: list[Step] = []
        self._tasks: list[asyncio.Task[CallResult]] = []
        self._started_steps: set[int] = set()
        self._unneeded: frozenset[int] = frozenset()
        self._replies: dict[int, Reply] = {}
        self._breaks = defaultdict[int, Breaks](Breaks)
        """Restarts and continuations by step."""
        self._answers_so_far: dict[int, PartialAnswer] = {}

    async def run(self, steps: AsyncIterable[Step], end_plan: Callable[[], Plan | None]) -> CallResult | None:
        """Run `steps` as they arrive, except recorded ones, and return the last result. `end_plan` then
        returns the plan, or None if there is nothing to run.

        If a step that the answer needs fails, raise its error once no task is running. Raise StepsWait if no
        step can continue without tool results.
        """
        try:
            async for step in steps:
                self._start(step)
            plan = end_plan()
            if plan is None:
                return None
            await self._decide(plan)
            return await self._wait_for_last(plan)
        finally:
            await self._stop()

    async def _wait_for_last(self, plan: Plan) -> CallResult:
        """Return the last step's result. If it waits for tools, let the steps that it needs end or wait too."""
        last = self._tasks[-1]
        await asyncio.wait([last])
        if not isinstance(last.exception(), StepsWait):
            return last.result()
        needed = [self._tasks[index] for index in sorted(plan.reachable)]
        await asyncio.wait(needed)
        for index in sorted(plan.reachable):
            if not isinstance(self._tasks[index].exception(), StepsWait):
                self._output(index)
        raise StepsWait

    def _record_of(self, index: int) -> StepRecord | None:
        steps = self._context.log.record.plans[self._index].steps
        return steps[index] if index < len(steps) else None

    def _start(self, step: Step) -> None:
        index = len(self._steps)
        self._steps.append(step)
        if self._record_of(index) is None:
            self._context.log.append(StepPlanned(self._context.now_s(), self._index, index, step))
            if (plan := self._plan_that_did(index)) is not None:
                reused = StepReused(self._context.now_s(), self._index, index, plan)
                self._context.log.append(reused)
        self._tasks.append(asyncio.create_task(self._step(index, step), name=f"step {index} {step.worker}"))

    def _plan_that_did(self, index: int) -> int | None:
        """Return an interrupted plan with the same steps up to this one that has completed the step, or None."""
        for plan in self._interrupted:
            same = [each.step for each in plan.steps[: index + 1]] == self._steps
            if same and plan.steps[index].status == "done":
                return plan.index
        return None

    async def _decide(self, plan: Plan) -> None:
        """Cancel the steps that the answer does not need, and publish the last step's text so far."""
        self._unneeded = frozenset(range(len(self._tasks))) - plan.reachable
        for index in self._unneeded:
            self._tasks[index].cancel()
            self._abort(index, StepOutcome.NOT_NEEDED, None, of=("waiting",))
        await self._words.decide(len(plan.steps) - 1)

    async def _stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await wait_until_done(self._tasks)
        finally:
            for index, task in enumerate(self._tasks):
                if not task.cancelled():
                    task.exception()  # retrieved, so that asyncio does not log it
                elif index not in self._started_steps:
                    self._abort(index, self._outcome(index), None)

    async def _step(self, index: int, step: Step) -> CallResult:
        recorded = self._record_of(index)
        assert recorded is not None, "it was planned"
        self._started_steps.add(index)
        if recorded.status == "done" and recorded.result is not None:
            return recorded.result
        if recorded.failure is not None:
            raise recorded.failure.to_error()
        try:
            return self._end(index, await self._ask(index, step, recorded))
        except StepsWait:
            raise
        except asyncio.CancelledError:
            self._abort(index, self._outcome(index), None)
            raise
        except PodiumError as exc:
            self._abort(index, StepOutcome.FAILED, exc)
            raise
        except Exception as exc:
            error = internal_error(exc)
            self._abort(index, StepOutcome.FAILED, error)
            raise error from exc

    async def _ask(self, index: int, step: Step, recorded: StepRecord) -> CallResult:
        """Call the step's worker once its inputs are complete, and again if the answer is interrupted and may
        continue.
        """
        outputs = await self._outputs(step)
        if recorded.status == "waiting":
            raise StepsWait
        member = self._context.pool[step.worker]
        prompt = self._calls.prompt(member, step, self._steps, outputs)
        first_messages = recorded.prompt if recorded.turns else prompt.messages
        last_error: WorkerError | None = None
        while True:
            so_far = self._answers_so_far.get(index, PartialAnswer())
            turns = fit(conversation(recorded.turns), member) if recorded.turns else ()
            messages = (*first_messages, *turns)
            call = await self._calls.call(index, step, self._steps, messages)
            self._context.log.append(StepStarted(self._context.now_s(), self._index, index, first_messages))
            try:
                breaks = self._breaks[index]
                outlasts_break = not (recorded.turns or call.tools) and outlasts_silence(
                    member, self._context.task, breaks
                )
                terms = replace(call.terms, broken=breaks.broken, outlasts_break=outlasts_break)
                call = replace(call, mark_key=prompt.mark_key, terms=terms)
                return await self._answer(index, step, prompt, so_far.continue_call(call))
            except BudgetExceeded as exc:
                if last_error is None:
                    raise
                # The previous call used up the budget. Its interruption is the actual error.
                raise so_far.end(last_error, exc.attempts, exc.message) from None
            except WorkerError as exc:
                if not await self._go_on(index, recorded, exc):
                    if last_error is None or not so_far.breaks or index in self._replies:
                        raise
                    attempt = Attempt.of(exc.worker or step.worker, Failure.of(exc))
                    raise so_far.end(last_error, (*exc.attempts, attempt)) from exc
                last_error = exc

    async def _go_on(self, index: int, recorded: StepRecord, error: WorkerError) -> bool:
        """Prepare to continue or restart an answer that was interrupted. Return False if neither is possible.

        - If the client has received a part of the answer, continue after that part.
        - If the client has received nothing, restart the step. Also restart it if no worker can continue the
          answer and the run outlives its readers.

        If the result is False, the message of `error` says which part of the answer is missing.
        """
        async with self._words.stopped:
            before, reply = self._answers_so_far.get(index, PartialAnswer()), self._replies.get(index)
            is_seen = bool(before.breaks) or self._words.are_seen(index)
            so_far = before.after(reply) if reply and is_seen else before
            member, task = self._context.pool[recorded.worker], self._context.task
            may_change = self._words.may_change if is_seen else reply is not None
            breaks = self._breaks[index]
            restarts = may_change and may_restart(member, breaks, error)
            continued = reply if is_seen and may_continue(member, task, breaks, error) else None
            if recorded.turns or (reply and reply.tool_calls) or not (continued or restarts):
                if reply is not None:
                    so_far.explain(error)
                return False
            self._replies.pop(index, None)
            self._words.drop(index)
            at_s, failure = self._context.now_s(), Failure.of(error)
            where = (reply.worker, reply.deployment) if reply else (error.worker or recorded.worker, "")
            breaks.broken |= {where}
            if continued:
                breaks.continuations += 1
                self._answers_so_far[index] = so_far
                event = StepContinued(at_s, self._index, index, failure, continued.result)
            else:
                if is_seen:
                    self._words.end_answer()
                    self._answers_so_far.pop(index, None)
                breaks.restarts += 1
                event = StepRestarted(at_s, self._index, index, failure, reply.result if reply else None)
            self._context.log.append(event)
        return True

    async def _answer(self, index: int, step: Step, prompt: WorkerPrompt, call: Call) -> CallResult:
        """Make the call and publish its text as it streams."""
        member = self._context.pool[step.worker]
        source, follow_up = self._context.log.record.plans[self._index].source, self._context.follow_up
        likely = partial(likely_prompt, follow_up, call) if source == "conversation" else None
        async with open_call(member, call, self._context.ledger, likely) as reply:
            self._replies[index] = reply
            reply.notes += omission_notes(self._context.task.conversation, member)
            reply.notes += self._calls.tools_left_out(step)
            is_free = call.answer_format is None  # a formatted answer must match its schema unchanged
            echo = EchoFilter(OUTPUT, prompt.mark_key) if prompt.mark_key and is_free else None
            if echo:
                reply.deltas = echo.filter(reply.deltas)
            self._answers_so_far.get(index, PartialAnswer()).begin(reply)
            self._context.log.append(StepFirstToken(self._context.now_s(), self._index, index, reply.worker))
            try:
                await self._words.read(index, reply)
            finally:
                if echo and echo.removed:
                    reply.notes += (ECHO_NOTE,)
        return reply.result

    def _end(self, index: int, result: CallResult) -> CallResult:
        """Record a worker's answer or tool calls. For the latter, raise StepsWait."""
        log, at_s = self._context.log, self._context.now_s()
        if not result.tool_calls:
            log.append(StepFinished(at_s, self._index, index, result))
            return result
        first = log.record.n_tool_calls
        calls = tuple(PendingCall(first + n, call) for n, call in enumerate(result.tool_calls))
        log.append(StepWaits(at_s, self._index, index, result, calls))
        raise StepsWait

    async def _outputs(self, step: Step) -> dict[int, str]:
        """Wait for the outputs that `step` reads without cancelling their tasks. Raise the error of a failed
        one that may not be skipped, and do not await the others.
        """
        needed = [self._tasks[read] for read in step.access if not self._may_skip(read)]
        if needed:
            done, _ = await asyncio.wait(needed, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        if step.access:
            await asyncio.wait([self._tasks[read] for read in step.access])
        return {read: self._output(read) for read in step.access}

    def _may_skip(self, index: int) -> bool:
        return (self._steps[index].on_failure or self._context.task.on_step_failure) == "skip"

    def _output(self, index: int) -> str:
        """Return the output of an ended step, or the text for a skipped one. Raise if it failed."""
        try:
            return self._tasks[index].result().output
        except WorkerError as exc:
            if not self._may_skip(index):
                raise
            return describe_failure(exc)

    def _outcome(self, index: int) -> StepOutcome:
        return StepOutcome.NOT_NEEDED if index in self._unneeded else StepOutcome.CANCELLED

    def _abort(
        self,
        index: int,
        outcome: StepOutcome,
        error: PodiumError | None,
        of: Collection[StepStatus] = ("planned", "running"),
    ) -> None:
        """Record the end of a step without an output, if the step has one of the statuses in `of`."""
        recorded = self._record_of(index)
        if recorded is not None and recorded.status not in of:
            return  # the step ended in an earlier process: keep its recorded result or failure
        failure = Failure.of(error) if error else None
        so_far, reply = self._answers_so_far.get(index, PartialAnswer()), self._replies.get(index)
        if reply is None and error is None and recorded is not None and recorded.status == "running":
            result = so_far.result_of_open(recorded.failed)
        else:
            result = reply.result if reply else so_far.result
        self._context.log.append(
            StepAborted(self._context.now_s(), self._index, index, outcome, failure, result)
        )
