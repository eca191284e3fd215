"""The plans of a follow-up turn: the conversation's worker may begin its answer while the conductor decides."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable
from contextlib import suppress

from conductor.errors import BudgetExceeded, InvalidPlan, WorkerError
from conductor.model.characters import BYTES_PER_TOKEN, byte_size
from conductor.plan.plan import Plan, Step
from conductor.run.events import PlanEnded, StepAborted, StepOutcome
from conductor.run.follow_up import FollowUp, course, why_kept, why_no_switch
from conductor.run.moves import RunPlan, WritePlan, filter_failure
from conductor.run.plan_requests import PlanRequests, PlanStream
from conductor.run.run import RunContext, wait_until_done

FIRST = WritePlan("conductor", 0)
Execute = Callable[[int, AsyncIterable[Step], Callable[[], Plan | None]], Awaitable[None]]
"""Function that runs the plan at an index."""


async def all_of(plan: Plan) -> AsyncIterator[Step]:
    """Yield the steps of `plan`."""
    for step in plan.steps:
        yield step


class FollowUpRound:
    """Decisions about the plans of a follow-up turn.

    Args:
        context: context of the run.
        requests: requests for plans.
        follow_up: facts about the turn.
        execute: function that runs a plan.
    """

    def __init__(
        self, context: RunContext, requests: PlanRequests, follow_up: FollowUp, execute: Execute
    ) -> None:
        self._context, self._requests, self._execute = context, requests, execute
        self._follow_up = follow_up
        budget = context.task.budget
        has_limits = budget.max_cost_usd is not None or budget.max_tokens is not None
        fits = self._fits_conductor()
        self.course, why = course(context.pool, follow_up, has_limits=has_limits, fits_conductor=fits)
        self.plan = RunPlan(follow_up.plan, "conversation", why)
        """Plan of the conversation's worker alone."""

    def _fits_conductor(self) -> bool:
        conductor = self._requests.conductor
        if conductor.member.context_tokens is None:
            return True
        n_tokens = sum(byte_size(message.text) for message in self._requests.prompt(FIRST)) // BYTES_PER_TOKEN
        plan_tokens = conductor.max_plan_tokens + conductor.max_thinking_tokens
        return n_tokens + plan_tokens <= conductor.member.context_tokens

    @property
    def is_decided_first(self) -> bool:
        """True if no step of the conductor's plan may start before the plan is complete."""
        is_first = not self._context.log.record.plans
        return is_first and (self.course == "speculate" or self._follow_up.may_lose_cache)

    def why_kept(self, index: int, plan: Plan) -> str:
        """Return why the conversation's worker is kept although the conductor wrote `plan`, or "" if the plan runs.
        Count the decision.
        """
        why = why_kept(plan, self._context.pool, self._follow_up)
        plan_s = self._context.now_s() - self._context.log.record.plans[index].started_s
        self._follow_up.agreement.note(agrees=bool(why), plan_s=plan_s)
        return why

    def why_no_switch(self, plan: Plan) -> str:
        """Return why `plan` of a later round may not replace the conversation's worker, or "" if it may."""
        return why_no_switch(plan, self._context.pool, self._follow_up)

    async def filter_steps(self, steps: AsyncIterable[Step]) -> AsyncIterator[Step]:
        """Yield `steps` of a later round's plan. If a switch could lose the cache, wait for the whole plan, and yield its
        steps only if it may replace the conversation's worker.
        """
        if self._follow_up.may_lose_cache:
            plan = tuple([step async for step in steps])
            if not plan or self.why_no_switch(Plan(plan)):
                return
            steps = all_of(Plan(plan))
        async for step in steps:
            yield step

    async def run(self) -> None:
        """Let the conductor write its plan, and run the plan unless the conversation's worker is kept.

        If the course is `speculate`, that worker is called immediately. Its call is closed if the conductor's plan runs.
        Otherwise the next move calls it. In the record, the plan that answers is the last one.
        """
        log, now_s = self._context.log, self._context.now_s
        index, stream = self._requests.open(FIRST)
        early = self._answer_early() if self.course == "speculate" else None
        try:
            plan = await self._whole_plan(index, stream)
            why = self.why_kept(index, plan) if plan else ""
            if plan and (why or early):
                log.append(PlanEnded(now_s(), index, stream.result, accepted=bool(why), why=why))
            if plan is None or why:
                if early and not early.lacks_budget and not self._is_filter_told(index):
                    await early.keep()
                return
            if early:
                await early.drop()
                index = self._requests.start("conductor", 0, None, ())

            def end_plan() -> Plan:
                log.append(PlanEnded(now_s(), index, None if early else stream.result))
                return plan

            await self._execute(index, all_of(plan), end_plan)
        finally:
            if early:
                await early.aclose()

    def _is_filter_told(self, index: int) -> bool:
        """Return whether the conductor's content filter has rejected the request, and the client must receive its error."""
        plan, conductor = self._context.log.record.plans[index], self._requests.conductor
        return filter_failure(plan, conductor.member.reports_filter) is not None

    def _answer_early(self) -> "EarlyAnswer":
        index = self._requests.start("conversation", 0, None, ())
        return EarlyAnswer(self._context, index, self.plan, self._execute)

    async def _whole_plan(self, index: int, stream: PlanStream) -> Plan | None:
        """Return the conductor's plan once its text is complete, or None if it failed or cannot run."""
        try:
            with self._requests.recording_errors(index, stream):
                async for _ in stream:
                    pass
                assert stream.plan is not None, (
                    "The first plan cannot contain `accept`, because there is no answer yet."
                )
                self._requests.check_forced_tools(stream.plan)
        except (InvalidPlan, WorkerError):
            return None
        return stream.plan


class _Superseded(Exception):
    """The conductor chose another plan."""


class EarlyAnswer:
    """Execution of the plan of a conversation's worker. Nothing of it is shown before the plan is kept.

    Args:
        context: context of the run.
        index: index of the plan.
        plan: plan with one step, and the reason for it.
        execute: function that runs a plan.
    """

    def __init__(self, context: RunContext, index: int, plan: RunPlan, execute: Execute) -> None:
        self._context, self._index, self._plan = context, index, plan
        self._is_kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(execute), name="early answer")

    @property
    def lacks_budget(self) -> bool:
        """True if the budget did not allow this call in addition to the conductor's."""
        failures = [step.failure for step in self._context.log.record.plans[self._index].steps]
        return any(failure is not None and failure.is_a(BudgetExceeded) for failure in failures)

    async def keep(self) -> None:
        """Show the answer, and wait for its end.

        Raises:
            PodiumError: the worker failed.
            StepsWait: the worker called tools.
        """
        self._is_kept.set_result(True)
        await self._task

    async def drop(self) -> None:
        """Close the call, because another plan runs, and wait until it is closed."""
        self._is_kept.set_result(False)
        with suppress(_Superseded):
            await self._task

    async def aclose(self) -> None:
        """Close the call unless it has ended."""
        self._task.cancel()
        try:
            await wait_until_done([self._task])
        finally:
            if not self._task.cancelled():
                self._task.exception()  # retrieved, so that asyncio does not log it
            self._stop()  # a task that is cancelled before its first step does not run

    async def _run(self, execute: Execute) -> None:
        try:
            await execute(self._index, self._steps(), self._end_plan)
        except BaseException:
            self._stop()
            raise

    async def _steps(self) -> AsyncIterator[Step]:
        async for step in all_of(self._plan.plan):
            yield step
        if not await self._is_kept:
            raise _Superseded

    def _end_plan(self) -> Plan:
        self._context.log.append(PlanEnded(self._context.now_s(), self._index, why=self._plan.why))
        return self._plan.plan

    def _stop(self) -> None:
        """Record that the plan was closed, unless it was kept."""
        log, at_s = self._context.log, self._context.now_s()
        plan = log.record.plans[self._index]
        if plan.ended_s is None:
            if plan.steps and plan.steps[0].status == "waiting":
                log.append(StepAborted(at_s, self._index, 0, StepOutcome.CANCELLED))
            why = "Cancelled before the conductor had confirmed this worker."
            log.append(PlanEnded(at_s, self._index, why=why, stopped=True))
