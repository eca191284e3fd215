"""Bounds that call nobody: what a perfect choice among given answers would have got."""

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.outcome import Outcome
from evaluation.questions import Grade, Question
from evaluation.results import Result
from evaluation.strategies.base import Answer, Plain, Scene, Setup

FAR = Decimal("Infinity")


@dataclass(slots=True)
class Oracle(Plain):
    """The best single worker for each question, the cheapest of several. Its figures are that worker's."""

    labels: tuple[str, ...]

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return self.labels

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        found = [result for label in self.labels if (result := scene.result(label, question.id)) is not None]
        if not found:
            return Answer(
                Outcome(error="NoResults", message="No single worker has a result for this question.")
            )
        chosen = min(found, key=_rank)
        grade = Grade(chosen.correct, chosen.extracted, chosen.why)
        return Answer(chosen.outcome, grade, {"chosen": chosen.strategy, "free": True})


@dataclass(slots=True)
class PickAtN(Plain):
    """Right where one of best-of-n's samples is; its figures are those of all samples."""

    of: str

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return (self.of,)

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        drawn = scene.result(self.of, question.id)
        if drawn is None:
            return Answer(Outcome(error="NoResults", message=f"{self.of} has no result for this question."))
        right = any(drawn.notes.get("samples_right", ()))
        grade = Grade(right, drawn.extracted, "" if right else "no sample is right")
        return Answer(drawn.outcome, grade, {"of": self.of, "free": True})


def _rank(result: Result) -> tuple[bool, Decimal]:
    cost = result.outcome.cost_usd
    return not result.correct, FAR if cost is None else cost


def make(named: Named, setup: Setup) -> Sequence[Oracle | PickAtN]:
    """See `Maker`."""
    named.only()
    if named.name == "oracle":
        singles = tuple(label for label in setup.labels if label.startswith("single:"))
        if not singles:
            raise EvaluationError("oracle chooses among single workers; name `single` too.")
        return [Oracle("oracle", f"the best of {len(singles)} single workers for each question", singles)]
    of = named.detail or next((label for label in setup.labels if label.startswith("best_of_n")), "")
    if of not in setup.labels:
        raise EvaluationError("best_of_n_oracle chooses among best_of_n's samples; name `best_of_n` too.")
    return [PickAtN(str(named), f"right where any sample of {of} is (pick@n)", of)]
