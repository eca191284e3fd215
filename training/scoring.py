"""What a run is worth: 0 for a text that is no plan, 0.5 for a wrong answer, 1 for a right one (arXiv 2512.04388, section 3.1)."""

from dataclasses import dataclass

from conductor.errors import BudgetExceeded, InvalidPlan, PodiumError, WorkerError
from conductor.record import PlanRecord, Record
from evaluation.graders import grade
from evaluation.questions import Question
from training.exact_plan import is_exact_plan

NO_PLAN, WRONG, RIGHT = 0.0, 0.5, 1.0


@dataclass(frozen=True, slots=True)
class Score:
    """A run's reward, and what it was made from.

    Args:
        reward: None where nobody can say: a worker could not be reached, so the plan is not to blame.
        parsed: whether the text is a plan, strict to its end.
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


async def score(
    question: Question,
    record: Record,
    written: str,
    workers: list[str],
    settings: "Terms",
    *,
    ended: bool = True,
) -> Score:
    """The reward of `record`, whose last plan's text is `written`, shown `workers` in that order.

    A text that was cut off (`ended` is false) is no plan, also where the engine could run what there is of it.
    """
    if not ended or not _is_plan(record, written, workers, settings):
        return Score(
            NO_PLAN, parsed=False, right=False, record=record, why=_why(record) or "more than a plan"
        )
    error = record.error
    if error is not None:
        reward = WRONG if _plans_fault(error) else None
        return Score(reward, parsed=True, right=False, record=record, why=_why(record))
    graded = await grade(question, record.answer)
    if not graded.correct:
        return Score(WRONG, parsed=True, right=False, record=record, why=graded.why)
    return Score(settings.right(record), parsed=True, right=True, record=record)


@dataclass(frozen=True, slots=True)
class RewardTerms:
    """How runs are scored.

    Args:
        format: of the plans.
        max_steps: a plan has at most so many.
        usd_weight: so much is taken from a right answer's reward for each dollar that it cost; 0, as in the paper: nothing. It
            never falls below a wrong answer's.
    """

    format: str = "steps"
    max_steps: int = 5
    usd_weight: float = 0.0

    def right(self, record: Record) -> float | None:
        """The reward of a right answer; None where its cost counts and is not known."""
        if not self.usd_weight:
            return RIGHT
        cost = record.cost_usd
        return None if cost is None else max(WRONG, RIGHT - self.usd_weight * float(cost))


def _is_plan(record: Record, written: str, workers: list[str], terms: RewardTerms) -> bool:
    if not record.plans or record.plans[-1].rejected is not None or isinstance(record.error, InvalidPlan):
        return False
    return is_exact_plan(terms.format, written, workers, terms.max_steps)  # type: ignore[arg-type]


def _plans_fault(error: PodiumError) -> bool:
    """Whether another plan would have fared better, rather than another hour."""
    return isinstance(error, BudgetExceeded) or (isinstance(error, WorkerError) and not error.retryable)


def _why(record: Record) -> str:
    return f"{type(record.error).__name__}: {record.error.explanation}" if record.error else ""
