"""Records of a plan and of its steps."""

from collections.abc import Iterator
from decimal import Decimal
from typing import Literal

from conductor.errors import Reason
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import Message
from conductor.model.reply import CallResult
from conductor.model.value import Value
from conductor.plan.plan import OnFailure, Step
from conductor.run.events import Source
from conductor.run.turns import StepTurn

StepStatus = Literal["planned", "running", "waiting", "done", "failed", "not_needed", "cancelled"]


def charges(failure: Failure | None, attempts: tuple[Attempt, ...] = ()) -> Iterator[Failure | Attempt]:
    """Yield the failed calls in `attempts` and `failure` that used tokens or money."""
    own = [failure] if failure else []
    for each in (*attempts, *(failure.attempts if failure else ()), *own):
        if each.usage is not None or each.cost_usd is not None:
            yield each


class UnmeteredCall(Value, frozen=True):
    """A call that was started and whose token usage was never reported.

    Args:
        writes_plan: whether the call is a conductor's call for a plan.
        is_open: whether the call is still running.
    """

    worker: str
    prompt: tuple[Message, ...]
    cost_usd: Decimal | None
    writes_plan: bool = False
    is_open: bool = False


class StepRecord(Value, frozen=True):
    """One step. Times are seconds since the run began, or None if the event did not happen."""

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
    """The worker that answers, set with the first token: `worker`, or the one that the call failed over to."""
    ended_s: float | None = None
    failure: Failure | None = None
    cut: tuple[Attempt, ...] = ()
    """Interrupted calls that another one followed (`outcome` is `cut`), and failed attempts before them."""
    failed: tuple[Attempt, ...] = ()
    """Failed attempts before the current or last call. They move to `result` or `failure` once it is set."""
    reused_from: int | None = None
    """Index of the plan whose equal step has produced the result. The call is counted there."""
    needs: str = ""
    """The conductor's reason for choosing the worker. Empty if it gave none."""
    tools: bool = True
    """True if the step may call the client's tools."""
    on_failure: OnFailure | None = None
    """Rule for a failure of the step, or None for the task's rule."""
    turns: tuple[StepTurn, ...] = ()
    """Conversation with tools after `prompt`. `result` is the answer after these turns."""

    @property
    def step(self) -> Step:
        return Step(self.worker, self.subtask, self.access, self.needs, self.tools, self.on_failure)

    @property
    def results(self) -> tuple[CallResult, ...]:
        newest = (self.result,) if self.result else ()
        return (*(turn.result for turn in self.turns), *newest) if self.turns else newest

    @property
    def is_between_turns(self) -> bool:
        """True if the worker has called tools and has not been called again since."""
        return bool(self.turns) and self.status in ("planned", "waiting")

    @property
    def unmetered_cuts(self) -> list[Attempt]:
        """Interrupted calls whose usage was not reported."""
        return [cut_call for cut_call in self.cut if cut_call.outcome == "cut" and cut_call.usage is None]

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Calls without an answer that consumed tokens or money."""
        if self.reused_from is not None:
            return
        # The failure of a step that never started is the failure of a step that it reads.
        own = self.failure if self.started_s is not None else None
        before_answers = (attempt for result in self.results for attempt in result.attempts)
        yield from charges(own, (*self.cut, *self.failed, *before_answers))

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Calls that were started and whose usage was never reported."""
        if self.reused_from is not None:
            return
        lost_calls = [*self.unmetered_cuts, *filter(_is_billed_unseen, self.calls_without_answer)]
        costs = [each.cost_usd for each in lost_calls]
        costs += [turn.result.cost_usd for turn in self.turns if turn.result.usage is None]
        for cost_usd in costs:
            yield UnmeteredCall(self.worker, self.prompt, cost_usd)
        if self.status == "running" or self.is_unmetered:
            cost_usd = self.result.cost_usd if self.result else None
            yield UnmeteredCall(self.worker, self.prompt, cost_usd, is_open=not self.is_unmetered)

    @property
    def is_unmetered(self) -> bool:
        """True if the newest call's usage was never reported."""
        if self.started_s is None:
            return False
        return self.result.usage is None if self.result else self.status in ("cancelled", "not_needed")


class PlanRecord(Value, frozen=True):
    """One plan text and its outcome."""

    index: int
    round: int
    source: Source
    started_s: float
    worker: str | None = None
    prompt: tuple[Message, ...] = ()
    steps: tuple[StepRecord, ...] = ()
    result: CallResult | None = None
    """The conductor's call, or None if no model wrote the plan."""
    ended_s: float | None = None
    accepted: bool = False
    """True if the text accepted the previous round's answer."""
    rejection: Failure | None = None
    failure: Failure | None = None
    why: str = ""
    """Reason of the rejection, or of the fallback."""
    stopped: bool = False
    """True if the run ended while the plan was being written."""
    cut: bool = False
    """True if the process ended before the plan's text was complete."""
    failed: tuple[Attempt, ...] = ()
    """Failed attempts before the conductor's current or last call. See `StepRecord.failed`."""

    @property
    def reject_reason(self) -> Reason | None:
        """Reason why the plan cannot run, or None if it can."""
        return None if self.rejection is None else self.rejection.reason

    @property
    def is_interrupted(self) -> bool:
        """True if the run or its process ended while the plan was being written."""
        return self.stopped or self.cut

    @property
    def broke_off(self) -> bool:
        """True if a retryable error of the conductor interrupted the text. False if a failed step ended it."""
        has_text = self.result is not None and bool(self.result.output)
        by_step = any(step.status == "failed" for step in self.steps)
        return has_text and not by_step and self.failure is not None and self.failure.retryable

    @property
    def calls_without_answer(self) -> Iterator[Failure | Attempt]:
        """Conductor calls without an answer that consumed tokens or money."""
        is_own = self.failure is not None and self.failure.get("step") is None
        yield from charges(
            self.failure if is_own else None, self.result.attempts if self.result else self.failed
        )

    @property
    def unmetered_calls(self) -> Iterator[UnmeteredCall]:
        """Calls of the conductor and the steps whose usage was never reported."""
        if self.worker is not None:
            for call in filter(_is_billed_unseen, self.calls_without_answer):
                yield UnmeteredCall(self.worker, self.prompt, call.cost_usd, writes_plan=True)
            if self.result is None and (self.ended_s is None or self.is_interrupted):
                is_open = not self.is_interrupted
                yield UnmeteredCall(self.worker, self.prompt, None, writes_plan=True, is_open=is_open)
            elif self.result is not None and self.result.usage is None:
                yield UnmeteredCall(self.worker, self.prompt, self.result.cost_usd, writes_plan=True)
        for step in self.steps:
            yield from step.unmetered_calls

    @property
    def is_answered(self) -> bool:
        """True if the plan ran to the output of its last step."""
        runs = bool(self.steps) and self.rejection is None and self.failure is None
        return runs and self.ended_s is not None and not self.stopped and self.steps[-1].status == "done"


def _is_billed_unseen(call: Failure | Attempt) -> bool:
    """Return whether a failed or slower call is billed without usage. `unmetered_cuts` has interrupted ones."""
    is_cut = isinstance(call, Attempt) and call.outcome == "cut"
    return call.cost_is_bound and call.usage is None and not is_cut
