"""One plan of a run, and its steps, as the record keeps them."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

from conductor.errors import Reason
from conductor.model.failure import Attempt, Failure, charges
from conductor.model.messages import Message
from conductor.model.reply import CallResult
from conductor.model.value import Value
from conductor.plan.plan import OnFailure, Step
from conductor.run.events import Source, reason_of
from conductor.run.turns import StepTurn

StepStatus = Literal["planned", "running", "waiting", "done", "failed", "not_needed", "cancelled"]


class UnmeteredCall(Value, frozen=True):
    """A call that was begun and whose tokens nobody reported.

    Args:
        worker: who was asked.
        prompt: what it was shown.
        cost_usd: what it cost, where that is known all the same.
        writes_plan: whether it is a conductor's.
        is_open: it is under way.
    """

    worker: str
    prompt: tuple[Message, ...]
    cost_usd: Decimal | None
    writes_plan: bool = False
    is_open: bool = False


class StepRecord(Value, frozen=True):
    """One step. Times are seconds since the run began; None where it did not come to that."""

    index: int
    worker: str
    subtask: str
    access: tuple[int, ...]
    planned_s: float
    status: StepStatus = "planned"
    prompt: tuple[Message, ...] = ()
    result: CallResult | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    served_by: str | None = None
    """Who answers, from the first token on: `worker`, or the one it failed over to."""
    ended_s: float | None = None
    failure: Failure | None = None
    cut: tuple[Attempt, ...] = ()
    """Calls which gave no whole answer and after which the step began again: those that broke off, by themselves
    or with their process (`outcome` is `cut`), and the attempts that had failed before them."""
    failed: tuple[Attempt, ...] = ()
    """Attempts that failed before the call that is under way, or that was left; once there is a result or a failure,
    they are in that."""
    reused_from: int | None = None
    """The plan whose equal step gave the result; the call is counted there."""
    needs: str = ""
    """What it takes, in the conductor's words; empty where it did not say."""
    tools: bool = True
    """Whether it may call the client's tools."""
    on_failure: OnFailure | None = None
    """What follows where it fails; None: what the task says."""
    turns: tuple[StepTurn, ...] = ()
    """Its conversation with tools so far; `result` is the answer after them. `prompt` comes before them."""

    @property
    def step(self) -> Step:
        """As its plan has it."""
        return Step(self.worker, self.subtask, self.access, self.needs, self.tools, self.on_failure)

    @property
    def results(self) -> tuple[CallResult, ...]:
        """Of every call that its worker answered."""
        newest = (self.result,) if self.result else ()
        return (*(turn.result for turn in self.turns), *newest) if self.turns else newest

    @property
    def is_between_turns(self) -> bool:
        """Whether its worker has called tools, and was not called again since."""
        return bool(self.turns) and self.status in ("planned", "waiting")

    @property
    def unmetered_cuts(self) -> list[Attempt]:
        """Calls that broke off before anybody said what they took."""
        return [lost for lost in self.cut if lost.outcome == "cut" and lost.usage is None]

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Its calls that gave no answer, and that took tokens or money all the same."""
        if self.reused_from is not None:
            return
        own = self.failure if self.started_s is not None else None  # one that waited has its read step's
        yield from charges(own, (*self.cut, *self.failed, *(self.result.attempts if self.result else ())))

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Its calls that were begun and whose tokens nobody reported."""
        if self.reused_from is not None:
            return
        lost = [*self.unmetered_cuts, *filter(_is_billed_unseen, self.calls_without_answer)]
        costs = [each.cost_usd for each in lost]
        costs += [turn.result.cost_usd for turn in self.turns if turn.result.usage is None]
        for cost_usd in costs:
            yield UnmeteredCall(self.worker, self.prompt, cost_usd)
        if self.status == "running" or self.is_unmetered:
            cost_usd = self.result.cost_usd if self.result else None
            yield UnmeteredCall(self.worker, self.prompt, cost_usd, is_open=not self.is_unmetered)

    @property
    def is_unmetered(self) -> bool:
        """Whether its newest call was made and nobody said what it took."""
        if self.started_s is None:
            return False
        return self.result.usage is None if self.result else self.status in ("cancelled", "not_needed")


class PlanRecord(Value, frozen=True):
    """One plan text and what became of it."""

    index: int
    round: int
    source: Source
    started_s: float
    worker: str | None = None
    prompt: tuple[Message, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    result: CallResult | None = None
    """The conductor's call; None where no model wrote the plan."""
    ended_s: float | None = None
    accepted: bool = False
    """The text kept the answer of the round before."""
    rejection: Failure | None = None
    failure: Failure | None = None
    why: str = ""
    """Why it was rejected, or why it is a fallback."""
    stopped: bool = False
    """The run ended while it was written."""
    cut: bool = False
    """The process that wrote it ended."""
    failed: tuple[Attempt, ...] = ()
    """As of a step."""

    @property
    def reject_reason(self) -> Reason | None:
        """Why it cannot run; None where it can."""
        return reason_of(self.rejection)

    @property
    def is_interrupted(self) -> bool:
        """Whether the process that wrote it ended before its text did."""
        return self.stopped or self.cut

    @property
    def broke_off(self) -> bool:
        """Whether its conductor fell silent, or was cut, in the middle of the text, for no fault of the request. A step that fails
        meanwhile ends the text too.
        """
        begun = self.result is not None and bool(self.result.output)
        by_step = any(step.status == "failed" for step in self.steps)
        return begun and not by_step and self.failure is not None and self.failure.retryable

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Its conductor's calls that gave no answer and took tokens or money."""
        is_own = self.failure is not None and self.failure.get("step") is None
        yield from charges(
            self.failure if is_own else None, self.result.attempts if self.result else self.failed
        )

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Calls that were begun and whose tokens nobody reported: its conductor's and its steps'."""
        if self.worker is not None:
            for lost in filter(_is_billed_unseen, self.calls_without_answer):
                yield UnmeteredCall(self.worker, self.prompt, lost.cost_usd, writes_plan=True)
            if self.result is None and (self.ended_s is None or self.is_interrupted):
                is_open = not self.is_interrupted
                yield UnmeteredCall(self.worker, self.prompt, None, writes_plan=True, is_open=is_open)
            elif self.result is not None and self.result.usage is None:
                yield UnmeteredCall(self.worker, self.prompt, self.result.cost_usd, writes_plan=True)
        for step in self.steps:
            yield from step.unmetered_calls

    @property
    def is_answered(self) -> bool:
        """Whether it ran to its last step's output."""
        runs = bool(self.steps) and self.rejection is None and self.failure is None
        return runs and self.ended_s is not None and not self.stopped and self.steps[-1].status == "done"


def _is_billed_unseen(lost: Failure | Attempt) -> bool:
    """Whether a call that failed, or lost to another, is billed for what nobody reported. Cut ones are counted apart."""
    is_cut = isinstance(lost, Attempt) and lost.outcome == "cut"
    return lost.cost_is_bound and lost.usage is None and not is_cut
