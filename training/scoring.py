"""What a run is worth: 0 for a text that is no plan, 0.5 for a wrong answer, 1 for a right one.

See arXiv 2512.04388, section 3.1.
"""

from dataclasses import dataclass

from conductor.errors import BudgetExceeded, WorkerError
from conductor.model.failure import Failure
from conductor.plan.formats import Format
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from evaluation.graders import grade
from evaluation.questions import Question
from training.exact_plan import is_exact_plan

NO_PLAN, WRONG, RIGHT = 0.0, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """A run's reward, and what it follows from.

    Args:
        reward: None where it cannot be known: a worker was unreachable, which is not the plan's fault.
        parsed: whether the text is a plan, to its very end.
        right: whether the answer is.
        record: of the run.
        why: in words, where it is not right.
    """

    reward: float | None
    parsed: bool
    right: bool
    record: Record
    why: str = ""

    @property
    def newest(self) -> PlanRecord:
        """The plan that is scored: the last one written."""
        return self.record.plans[-1]


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """How runs are scored.

    Args:
        format: of the plans.
        max_steps: of a plan.
        usd_weight: subtracted from a right answer's reward for each dollar that it cost; 0, as in the paper:
            nothing. The reward never falls below a wrong answer's.
    """

    format: Format = "steps"
    max_steps: int = 5
    usd_weight: float = 0.0

    def right(self, record: Record) -> float | None:
        """The reward of a right answer; None where its cost counts and is unknown."""
        if not self.usd_weight:
            return RIGHT
        cost = record.cost_usd
        return None if cost is None else max(WRONG, RIGHT - self.usd_weight * float(cost))


async def score(
    question: Question,
    record: Record,
    text: str,
    workers: list[str],
    terms: RewardTerms,
    *,
    ended: bool = True,
) -> Score:
    """Score `record`, whose last plan is `text`, written for `workers` in that order.

    A text that was cut off (`ended` is false) is no plan, even where the engine could run what there is of
    it.
    """
    if not ended or not _is_plan(record, text, workers, terms):
        return Score(
            NO_PLAN, parsed=False, right=False, record=record, why=_why(record) or "more than a plan"
        )
    if record.failure is not None:
        reward = WRONG if _plan_is_to_blame(record.failure) else None
        return Score(reward, parsed=True, right=False, record=record, why=_why(record))
    verdict = await grade(question, record.answer)
    if not verdict.correct:
        return Score(WRONG, parsed=True, right=False, record=record, why=verdict.why)
    return Score(terms.right(record), parsed=True, right=True, record=record)


def _is_plan(record: Record, text: str, workers: list[str], terms: RewardTerms) -> bool:
    if not record.plans or record.plans[-1].rejection is not None:
        return False
    return is_exact_plan(terms.format, text, workers, terms.max_steps)


def _plan_is_to_blame(failure: Failure) -> bool:
    """Whether another plan might have done better, rather than a later attempt."""
    return failure.is_a(BudgetExceeded) or (failure.is_a(WorkerError) and not failure.retryable)


def _why(record: Record) -> str:
    return f"{record.failure.code}: {record.failure.explanation}" if record.failure else ""
