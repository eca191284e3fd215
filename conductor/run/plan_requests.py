"""Requests for plans to the conductor of a run: each plan while it is written, and its start and end in the record."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.errors import InvalidPlan, NoPlan, PodiumError, Reason, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.characters import byte_size
from conductor.model.deltas import deltas_until
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.model.reply import CallResult, Delta, FinishReason, Reply
from conductor.model.worker import PoolMember
from conductor.plan.grammars import grammar
from conductor.plan.lists_parser import ListsParser
from conductor.plan.plan import Format, Parser, Plan, Step
from conductor.plan.prompts import with_tools_as_text
from conductor.plan.steps_parser import StepsParser
from conductor.run.call_holds import open_call
from conductor.run.events import PlanEnded, PlanStarted, Source
from conductor.run.follow_up import describe
from conductor.run.ledger import Ledger
from conductor.run.moves import WritePlan
from conductor.run.plan_record import PlanRecord
from conductor.run.run import RunContext
from conductor.run.steps import may_call_tools
from conductor.run.team import ConductorModel, Team

PLAN_BYTES_PER_TOKEN = 8
"""Upper bound of the bytes per token in a plan, for any tokenizer. Plans consist of prose and JSON."""


def parser(format: Format, workers: Sequence[str], max_steps: int) -> Parser:
    """Return a new parser of `format`. Workers are numbered in the order of `workers`."""
    return StepsParser(workers, max_steps) if format == "steps" else ListsParser(workers, max_steps)


class PlanStream:
    """One plan while it is written. Iterate over its steps, and then read `plan`.

    Each step is yielded as soon as it is complete.

    Args:
        pool: workers in the order in which the conductor sees them.
        call: call with the prompt, its position in the run, and the task's sampling, of which only the conversation
            counts. `conductor` determines the rest of the sampling, and the grammar.
        has_tools: whether workers can receive the client's tools.
        on_text: function that receives each delta of the text, and the reply so far.
    """

    def __init__(
        self,
        conductor: ConductorModel,
        pool: Sequence[PoolMember],
        max_steps: int,
        call: Call,
        ledger: Ledger,
        *,
        may_accept: bool,
        has_tools: bool = False,
        on_text: Callable[[Delta, Reply], None] | None = None,
    ) -> None:
        self._on_text = on_text
        self._conductor, self._ledger, self._may_accept = conductor, ledger, may_accept
        self._parser = parser(conductor.format, [member.name for member in pool], max_steps)
        constraint = None
        if conductor.constrained:
            constraint = grammar(
                conductor.format,
                len(pool),
                max_steps,
                may_accept=may_accept,
                subtask_chars=conductor.subtask_chars,
                thinking=conductor.thought,
                has_tools=has_tools,
            )
        sampling = replace(conductor.sampling, options=call.sampling.options.for_plans)
        self._call = replace(call, sampling=sampling, grammar=constraint)
        self.result: CallResult | None = None
        """Result of the conductor's call, once the iteration has ended. None if the call gave no reply."""
        self.plan: Plan | None = None
        """The whole plan, once the iteration has ended. None if the text accepts the previous answer."""
        self._is_late = False

    async def __aiter__(self) -> AsyncIterator[Step]:
        """Yield the steps. An InvalidPlan, WorkerError or BudgetExceeded may follow some of them."""
        reply: Reply | None = None
        try:
            async with (
                open_call(self._conductor.member, self._call, self._ledger) as reply,
                aclosing(self._texts(reply)) as texts,
            ):
                async for text in texts:
                    for step in self._parser.feed(text):
                        yield step
        finally:
            if reply is not None:  # the bill is complete once the call is closed
                self.result = reply.result
        assert reply is not None, "it was opened, or an error was raised"
        self.plan = self._finish(cut_off=reply.finish is FinishReason.LENGTH)
        if self.plan is None and not self._may_accept:
            raise InvalidPlan("The text accepts an answer, but there is none yet.", reason=Reason.NO_PLAN)

    async def _texts(self, reply: Reply) -> AsyncGenerator[str]:
        """Yield the plan's text without reasoning, until it ends or exceeds its limit of time or size."""
        limits = self._conductor
        ends_at_s, room = time.monotonic() + limits.timeout_s, PLAN_BYTES_PER_TOKEN * limits.max_plan_tokens
        async with (
            aclosing(aiter(reply)) as all_deltas,
            aclosing(deltas_until(all_deltas, ends_at_s)) as deltas,
        ):
            async for delta in deltas:
                if delta is None:
                    self._is_late = True
                    reply.cut(f"The plan was cut off after {limits.timeout_s:g} s.")
                    return
                if self._on_text is not None:
                    self._on_text(delta, reply)
                yield delta.text
                room -= byte_size(delta.text)
                if room < 0 and not delta.finish:
                    reply.cut(
                        f"The plan was cut off because it was longer than conductor.max_plan_tokens ({limits.max_plan_tokens})."
                    )
                    return

    def _finish(self, *, cut_off: bool) -> Plan | None:
        try:
            return self._parser.finish(cut_off=cut_off)
        except InvalidPlan as exc:
            if not self._is_late:
                raise
            name, limit_s = self._conductor.member.name, self._conductor.timeout_s
            detail = f"The limit is {limit_s:g} s. Raise conductor.timeout_s to allow more."
            raise WorkerUnavailable(
                f"{name} did not finish its plan in time.", worker=name, detail=detail, retryable=False
            ) from exc


@dataclass(frozen=True, slots=True)
class PlanRequests:
    """Requests of one run.

    Args:
        team: team that plans and answers.
        context: context of the run.
        alone: worker that answers alone if planning fails.
    """

    _team: Team
    _context: RunContext
    _alone: str

    @property
    def conductor(self) -> ConductorModel:
        """The conductor of the run.

        Raises:
            NoPlan: the run has no conductor any more.
        """
        conductor = self._team.planner(self._context.task)
        if conductor is None:
            raise NoPlan("The conductor of this run is no longer available. Set `conductor` in the settings.")
        return conductor

    def start(self, source: Source, round: int, worker: str | None, prompt: tuple[Message, ...]) -> int:
        """Start a plan in the record, and return its index."""
        index = len(self._context.log.record.plans)
        self._context.log.append(PlanStarted(self._context.now_s(), index, round, source, worker, prompt))
        return index

    def open(self, move: WritePlan) -> tuple[int, PlanStream]:
        """Start a plan of the conductor. Return its index, and the stream of its steps. The conductor is called once the
        stream is read.
        """
        context, conductor = self._context, self.conductor
        prompt = self.prompt(move)
        index = self.start(move.source, move.round, conductor.member.name, prompt)
        call = context.call(prompt, context.site(index, operation="plan"), context.task.sampling)
        may_fail = self._can_do_without(conductor, move)
        # The cache of the conversation's deployment has the workers' prompts, which begin otherwise.
        terms = replace(call.terms, has_fallback=may_fail, home=("", ""))
        stream = PlanStream(
            conductor,
            list(context.pool.values()),
            context.task.max_steps,
            replace(call, terms=terms),
            context.ledger,
            may_accept=move.round > 0,
            has_tools=bool(context.log.record.task.tools),
            on_text=lambda delta, reply: context.log.note_work(context.now_s(), index, None, delta, reply),
        )
        return index, stream

    @contextmanager
    def recording_errors(self, index: int, stream: PlanStream) -> Generator[None]:
        """Record an error that ends the text of a plan, and raise it again."""
        log = self._context.log
        try:
            yield
        except InvalidPlan as exc:
            at_s, rejection = self._context.now_s(), Failure.of(exc)
            log.append(PlanEnded(at_s, index, stream.result, rejection=rejection, why=exc.message))
            raise
        except BaseException as exc:
            if log.record.plans[index].ended_s is None:  # the conductor failed or was stopped while writing
                failure = Failure.of(exc) if isinstance(exc, PodiumError) else None
                stopped = PlanEnded(
                    self._context.now_s(),
                    index,
                    stream.result,
                    failure=failure,
                    why=failure.message if failure else "",
                    stopped=failure is None,
                )
                log.append(stopped)
            raise

    def check_forced_tools(self, plan: Plan) -> None:
        """Reject a plan whose answering step cannot call a tool although the request requires a tool call."""
        last, index = plan.steps[-1], len(plan.steps) - 1
        is_forced = self._context.log.record.task.tools.is_forced
        if is_forced and not may_call_tools(last, self._context.pool[last.worker]):
            message = (
                f"Step {index} writes the answer and must call a tool, but worker {last.worker} cannot call tools in this step. "
                "Give the last step to a worker that can call tools, and let it use them."
            )
            raise InvalidPlan(message, reason=Reason.NO_TOOLS, step=index)

    def _can_do_without(self, conductor: ConductorModel, move: WritePlan) -> bool:
        """Return whether an earlier round or a free worker can answer. The run then does not wait long."""
        task, alone = self._context.task, self._alone
        if task.strict or task.plan_only:
            return False
        return move.round > 0 or (alone != conductor.member.name and self._context.pool[alone].is_free())

    def prompt(self, move: WritePlan) -> tuple[Message, ...]:
        """Return the conductor's prompt, with the previous plan and its outcome, or the rejected plan and the
        reason.
        """
        record, pool = self._context.log.record, self._context.pool
        outcome: PlanRecord | None = record.last_answer_plan
        prompts, layout, task = self._team.prompts, self.conductor.layout, record.task
        talk, follow_up = with_tools_as_text(task.conversation), self._team.follow_up
        note = describe(pool, follow_up) if follow_up and record.parent is None else ""
        prompt = prompts.plan(layout, list(pool.values()), task.max_steps, talk, task.tools, note)
        if move.round > 0 and outcome is not None:
            text = outcome.result.output if outcome.result else ""
            result = outcome.steps[-1].result
            prompt = prompts.revise(prompt, text, result.output if result else "", layout)
        if move.source == "repair":
            rejected = next(plan for plan in reversed(record.plans) if plan.rejection is not None)
            text = rejected.result.output if rejected.result else ""
            prompt = prompts.repair(prompt, text, rejected.why)
        return tuple(prompt)
