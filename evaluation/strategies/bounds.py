"""Bounds that call nobody: what a perfect choice among given answers would have scored."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from evaluation.errors import EvaluationError
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question
from evaluation.results import Result
from evaluation.spec import Spec
from evaluation.strategies.base import BaseStrategy, EvalContext, Setup, StrategyAnswer


@dataclass(slots=True)
class Oracle(BaseStrategy):
    """The best single worker for each question, of several the cheapest. Its figures are that worker's."""

    labels: tuple[str, ...]

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return self.labels

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        """See `Strategy`."""
        results = [
            result for label in self.labels if (result := context.result(label, question.id)) is not None
        ]
        if not results:
            message = "No single worker has a result for this question."
            return StrategyAnswer(RunOutcome(error="NoResults", message=message))
        best = min(results, key=_rank)
        grade = Grade(best.correct, best.extracted, best.why)
        return StrategyAnswer(best.outcome, grade, {"chosen": best.strategy, "free": True})


@dataclass(slots=True)
class PickAtN(BaseStrategy):
    """Right where one of best-of-n's samples is; its figures are those of all samples."""

    of: str

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return (self.of,)

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        """See `Strategy`."""
        drawn = context.result(self.of, question.id)
        if drawn is None:
            message = f"{self.of} has no result for this question."
            return StrategyAnswer(RunOutcome(error="NoResults", message=message))
        right = any(drawn.notes.get("samples_right", ()))
        grade = Grade(right, drawn.extracted, "" if right else "no sample is right")
        return StrategyAnswer(drawn.outcome, grade, {"of": self.of, "free": True})


def _rank(result: Result) -> tuple[bool, Decimal]:
    cost = result.outcome.cost_usd
    return not result.correct, Decimal("Infinity") if cost is None else cost


def make(spec: Spec, setup: Setup) -> Sequence[Oracle | PickAtN]:
    """See `StrategyFactory`."""
    spec.allow_only()
    if spec.name == "oracle":
        singles = tuple(label for label in setup.labels if label.startswith("single:"))
        if not singles:
            raise EvaluationError("oracle chooses among single workers; name `single` too.")
        return [Oracle("oracle", f"the best of {len(singles)} single workers for each question", singles)]
    of = spec.detail or next((label for label in setup.labels if label.startswith("best_of_n")), "")
    if of not in setup.labels:
        raise EvaluationError("best_of_n_oracle chooses among best_of_n's samples; name `best_of_n` too.")
    return [PickAtN(str(spec), f"right where any sample of {of} is (pick@n)", of)]
