"""Upper bounds: what a perfect choice among existing answers would have scored. They call no worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from evaluation import EvaluationError
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question
from evaluation.results import Result
from evaluation.spec import Spec
from evaluation.strategies.base import EvalContext, Setup, Strategy, StrategyAnswer


@dataclass(slots=True)
class Oracle(Strategy):
    """Upper bound that takes the best single worker for each question, or the cheapest of several."""

    labels: tuple[str, ...]

    @property
    def after(self) -> tuple[str, ...]:
        return self.labels

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
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
class PickAtN(Strategy):
    """Upper bound that is right if any sample of best-of-n is right. Its figures are those of all samples."""

    of: str

    @property
    def after(self) -> tuple[str, ...]:
        return (self.of,)

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        samples = context.result(self.of, question.id)
        if samples is None:
            message = f"{self.of} has no result for this question."
            return StrategyAnswer(RunOutcome(error="NoResults", message=message))
        right = any(samples.notes.get("samples_right", ()))
        grade = Grade(right, samples.extracted, "" if right else "no sample is right")
        return StrategyAnswer(samples.outcome, grade, {"of": self.of, "free": True})


def _rank(result: Result) -> tuple[bool, Decimal]:
    cost = result.outcome.cost_usd
    return not result.correct, Decimal("Infinity") if cost is None else cost


def make(spec: Spec, setup: Setup) -> Sequence[Oracle | PickAtN]:
    spec.allow_only()
    if spec.name == "oracle":
        singles = tuple(label for label in setup.labels if label.startswith("single:"))
        if not singles:
            raise EvaluationError("oracle needs the results of single workers. Add the strategy `single`.")
        return [Oracle("oracle", f"the best of {len(singles)} single workers for each question", singles)]
    of = spec.detail or next((label for label in setup.labels if label.startswith("best_of_n")), "")
    if of not in setup.labels:
        raise EvaluationError(
            "best_of_n_oracle needs the samples of best_of_n. Add the strategy `best_of_n`."
        )
    return [PickAtN(str(spec), f"right if any sample of {of} is (pick@n)", of)]
