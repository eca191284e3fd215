"""The main loop of a run: decide the next move (`moves.py`) and execute it until the run ends.

The loop has no state between moves. The log contains all events, and each decision depends only on the record.
"""

import asyncio
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable

from conductor.errors import DeadlineExceeded, PodiumError, internal_error
from conductor.model.failure import Failure
from conductor.model.reply import FinishReason
from conductor.model.terms import Refusals, Terms
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan, Step
from conductor.run.event_log import EventLog
from conductor.run.events import AnswerDelta, PlanEnded, RunFailed, RunFinished, RunSuspended, StepPlanned
from conductor.run.follow_up import FollowUp
from conductor.run.follow_up_round import FollowUpRound, all_of
from conductor.run.ledger import Ledger
from conductor.run.moves import ContinuePlan, Fail, Finish, Move, RunPlan, WritePlan, is_last_round, next_move
from conductor.run.plan_requests import PlanRequests
from conductor.run.plan_run import PlanRun, StepsWait
from conductor.run.record import Record
from conductor.run.run import RunContext, wait_until_done
from conductor.run.team import Team

SAME_AGAIN = "The conductor wrote the same plan again, so the answer of that plan was accepted."


async def hold_while_same(steps: AsyncIterable[Step], earlier: tuple[Step, ...]) -> AsyncIterator[Step]:
    """Yield `steps` once they differ from the `earlier` plan's, or nothing if all are the same."""
    pending: list[Step] = []
    is_same = bool(earlier)
    async for step in steps:
        pending.append(step)
        is_same = is_same and len(pending) <= len(earlier) and step == earlier[len(pending) - 1]
        if not is_same:
            for each in pending:
                yield each
            pending, is_same = [], False
    if len(pending) < len(earlier):
        for each in pending:
            yield each


def _home_of(record: Record, follow_up: FollowUp | None) -> tuple[str, str]:
    """Return the worker and the deployment that have the conversation in their cache, or empty names if none is known.
    In a tool loop, they are those of the last call.
    """
    results = [turn.result for step in record.steps for turn in step.turns]
    if results:
        return results[-1].worker, results[-1].deployment
    return follow_up.home if follow_up else ("", "")


class RoundLoop:
    """Executes one run until its terminal event.

    Args:
        members: workers of this run by name, in the order in which the conductor sees them.
        refusals: refusals by workers so far, shared with the outer run.
        deadline_at_s: deadline of the caller by `time.monotonic`, if the task has no deadline of its own.
        write_down: function that stores the record durably before the run is suspended.
    """

    def __init__(
        self,
        team: Team,
        members: dict[str, PoolMember],
        log: EventLog,
        ledger: Ledger,
        refusals: Refusals,
        deadline_at_s: float | None = None,
        write_down: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        task = log.record.task
        self._team, self._log, self._write_down = team, log, write_down
        self._fallbacks = team.fallbacks(task)
        began_s = time.monotonic() - log.record.wall_s
        # A method would make a cycle with the context, and a long conversation would wait for the collector.
        self.now_s = lambda: time.monotonic() - began_s
        """Returns the seconds since the run began, without gaps between processes."""
        if task.deadline_s is not None:
            deadline_at_s = began_s + task.deadline_s
        account = log.record.account
        terms = Terms(
            deadline_at_s,
            task.permit,
            task.priority,
            account.key_id,
            account.team_id,
            refusals=refusals,
            home=_home_of(log.record, team.follow_up),
        )
        self._context = RunContext(
            task, members, ledger, log, self.now_s, terms, team.follow_up, team.earlier_turns
        )
        self._requests = PlanRequests(team, self._context, self._fallbacks[0])
        self._follow_up = self._find_follow_up()

    def _find_follow_up(self) -> FollowUpRound | None:
        """Return the decision about a follow-up turn, or None if this process does not make it."""
        record, task, follow_up = self._record, self._record.task, self._context.follow_up
        if follow_up is None or follow_up.worker not in self._context.pool or record.parent or record.plans:
            return None
        if task.plan is not None or task.plan_only or task.strict or self._team.planner(task) is None:
            return None
        return FollowUpRound(self._context, self._requests, follow_up, self._execute)

    @property
    def _record(self) -> Record:
        return self._log.record

    async def drive(self) -> None:
        """Execute the run until its terminal event. Unexpected exceptions are caught here
        (docs/architecture.md).
        """
        deadline = asyncio.timeout(self._time_left_s())
        try:
            async with deadline:
                await self._move_until_done()
        except Exception as exc:  # noqa: BLE001
            late = isinstance(exc, TimeoutError) and deadline.expired()
            error = exc if isinstance(exc, PodiumError) else self._late() if late else internal_error(exc)
            previous = self._record.last_answer_plan
            if previous is None or self._log.has_answer_begun or self._record.task.strict:
                self._log.append(RunFailed(self.now_s(), Failure.of(error)))
            else:  # a further round failed: keep the previous answer; the record has both
                await self._finish(Finish(previous.steps[-1].result))

    def _time_left_s(self) -> float | None:
        deadline_s = self._record.task.deadline_s
        return None if deadline_s is None else max(0.0, deadline_s - self.now_s())

    def _late(self) -> DeadlineExceeded:
        deadline_s = self._record.task.deadline_s
        what = "The answer is incomplete: the rest" if self._log.is_answer_seen else "The answer"
        message = f"{what} did not arrive within {deadline_s:g} s. Raise podium.deadline_s, or request a shorter answer."
        return DeadlineExceeded(message, param="podium.deadline_s", deadline_s=deadline_s)

    async def _move_until_done(self) -> None:
        while True:
            record, move = self._record, self._next_move()
            match move:
                case Finish():
                    return await self._finish(move)
                case Fail(failure=failure):
                    return self._log.append(RunFailed(self.now_s(), failure))
                case _:
                    try:
                        await self._run(move)
                    except StepsWait:
                        return await self._suspend()
                    except PodiumError:
                        is_explained = not isinstance(self._next_move(), ContinuePlan)
                        # Otherwise the same move would repeat forever.
                        if self._record is record or not is_explained:
                            raise

    def _next_move(self) -> Move:
        planner = self._team.planner(self._record.task)
        members = [*self._context.pool.values(), *([planner.member] if planner else [])]
        return next_move(
            self._record,
            self._fallbacks,
            has_conductor=planner is not None,
            reports_filter=frozenset[str]().union(*(each.reports_filter for each in members)),
            follow_up=self._follow_up.plan if self._follow_up else None,
            stays=self._follow_up is not None and self._follow_up.course == "stay",
        )

    async def _finish(self, move: Finish) -> None:
        """End the run with its answer. Publish the answer first if it was held back for the conductor's review."""
        result = move.result
        if result is not None and not self._log.has_answer_begun and (result.output or result.reasoning):
            await self._log.append_piece(AnswerDelta(self.now_s(), result.output, result.reasoning))
        finish = (result.finish if result else None) or FinishReason.STOP
        self._log.append(RunFinished(self.now_s(), result.output if result else "", finish))

    async def _suspend(self) -> None:
        """Suspend the run until its client sends tool results: store the record, and then publish the tool calls."""
        plan = self._record.plans[-1]
        numbers = [
            call.number
            for step in plan.steps
            if step.status == "waiting"
            for call in step.turns[-1].calls
            if call.number not in {result.number for result in step.turns[-1].results}
        ]
        last = plan.steps[-1]
        text = last.turns[-1].result.output if last.status == "waiting" and self._log.has_answer_begun else ""
        calls = self._record.calls_of_tools(numbers)
        write = self._write_whole if self._write_down else None
        await self._log.append_durably(RunSuspended(self.now_s(), calls, text, time.time()), write)

    async def _write_whole(self) -> None:
        """Store the whole record even if this task is cancelled. A part of it would be inconsistent."""
        assert self._write_down is not None, "the caller has checked it"
        writing = asyncio.ensure_future(self._write_down())
        try:
            await wait_until_done([writing])
        finally:
            writing.result()

    async def _run(self, move: WritePlan | RunPlan | ContinuePlan) -> None:
        match move:
            case WritePlan() if self._follow_up and self._follow_up.is_decided_first:
                await self._follow_up.run()
            case WritePlan():
                await self._write(move)
            case RunPlan(plan=plan):
                index = self._requests.start(move.source, 0, None, ())

                def end_plan() -> Plan:
                    self._log.append(PlanEnded(self.now_s(), index, why=move.why))
                    return plan

                await self._execute(index, all_of(plan), end_plan)
            case ContinuePlan(index=index):
                plan = Plan(tuple(step.step for step in self._record.plans[index].steps))
                await self._execute(index, all_of(plan), lambda: plan)

    async def _write(self, move: WritePlan) -> None:
        outcome = self._record.last_answer_plan
        earlier = tuple(step.step for step in outcome.steps) if outcome and outcome.result else ()
        index, stream = self._requests.open(move)

        def end_plan() -> Plan | None:
            is_same = stream.plan is not None and stream.plan.steps == earlier
            plan, why = (None, SAME_AGAIN) if is_same else (stream.plan, "")
            if plan is not None and move.round == 0:
                self._requests.check_forced_tools(plan)
                if self._follow_up:
                    self._follow_up.why_kept(index, plan)
            elif plan is not None and self._follow_up and (why := self._follow_up.why_no_switch(plan)):
                plan = None
            self._log.append(PlanEnded(self.now_s(), index, stream.result, accepted=plan is None, why=why))
            return plan

        steps = hold_while_same(stream, earlier)
        if move.round > 0 and self._follow_up:
            steps = self._follow_up.filter_steps(steps)
        with self._requests.recording_errors(index, stream):
            await self._execute(index, steps, end_plan)

    async def _execute(
        self, index: int, steps: AsyncIterable[Step], end_plan: Callable[[], Plan | None]
    ) -> None:
        if not self._record.task.plan_only:
            is_last = is_last_round(self._record.task, self._record.plans[index])
            plan = PlanRun(self._context, index, live=is_last)
            await plan.run(steps, end_plan)
            return
        number = 0
        async for step in steps:
            self._log.append(StepPlanned(self.now_s(), index, number, step))
            number += 1
        end_plan()
