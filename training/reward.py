"""The reward of a run: 0 if the text is not a plan, 0.5 for a wrong answer, 1 for a right one.

See arXiv 2512.04388, section 3.1.
"""

from dataclasses import dataclass

from conductor.errors import BudgetExceeded, WorkerError
from conductor.model.failure import Failure
from conductor.plan.plan import Format
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from evaluation.graders import grade
from evaluation.questions import Question
from training.exact_plan import is_exact_plan

NO_PLAN, WRONG, RIGHT = 0.0, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """Reward of a run and its data. The reward is None if a worker was unreachable, which is not the plan's
    fault.
    """

    reward: float | None
    parsed: bool
    right: bool
    record: Record
    why: str = ""

    @property
    def newest(self) -> PlanRecord:
        """Plan that was scored, which is the last one written."""
        return self.record.plans[-1]


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """Parameters of the reward.

    Args:
        usd_weight: the amount that a dollar of cost subtracts from the reward of a right answer. With 0, as
            in the paper, cost does not count. The reward is never less than that of a wrong answer.
    """

    format: Format = "steps"
    max_steps: int = 5
    usd_weight: float = 0.0

    def right(self, record: Record) -> float | None:
        """Return the reward of a right answer, or None if it depends on an unknown cost."""
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
    """Score `record`, whose last plan is `text`, for `workers` as shown. A truncated text is not a plan, even
    if its part could run.
    """
    if not ended or not _is_plan(record, text, workers, terms):
        why = _why(record) or "text other than the plan"
        return Score(NO_PLAN, parsed=False, right=False, record=record, why=why)
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
    """Return whether another plan, and not only another attempt, might have succeeded."""
    return failure.is_a(BudgetExceeded) or (failure.is_a(WorkerError) and not failure.retryable)


def _why(record: Record) -> str:
    return f"{record.failure.code}: {record.failure.explanation}" if record.failure else ""
