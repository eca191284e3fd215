"""Requests for plans to the conductor of a run, and how they start and end in its record."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.errors import InvalidPlan, NoPlan, PodiumError, Reason
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.plan.plan import Plan
from conductor.plan.prompts import with_tools_as_text
from conductor.run.events import PlanEnded, PlanStarted, Source
from conductor.run.follow_up import describe
from conductor.run.moves import WritePlan
from conductor.run.plan_record import PlanRecord
from conductor.run.plan_writer import ConductorModel, PlanStream
from conductor.run.run import RunContext
from conductor.run.steps import may_call_tools
from conductor.run.team import Team


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
        call = context.call(prompt, context.site(index, operation="plan"), Sampling())
        stream = PlanStream(
            conductor,
            list(context.pool.values()),
            context.task.max_steps,
            replace(call, terms=replace(call.terms, has_fallback=self._can_do_without(conductor, move))),
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
