"""Measurements of each worker: accuracy by kind of question, cost of a call, and output speed.

Figures without enough measurements are None or absent. `records.py` uses records of runs.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from conductor.model.usage import total
from evaluation import EvaluationError
from evaluation.cards.families import kind_of
from evaluation.recordings import RIGHT, TRAIN_SHARE, side_of
from evaluation.results import TRANSIENT, Result
from evaluation.sources.recorded import select
from evaluation.spec import Spec
from evaluation.statistics import Accuracy, accuracy

MIN_QUESTIONS = 10
"""Minimum number of questions of a kind. A kind with fewer questions is merged into its category."""
SINGLE = "single:"
"""Prefix of the strategies of `podium eval` that call one worker alone."""


@dataclass(frozen=True, slots=True)
class CardMeasurement:
    """Measurements of one worker.

    Args:
        overall: the accuracy over all graded questions, or None if there are none.
        calls: the number of calls whose cost and speed were measured.
        usd_per_call: the mean cost in US dollars, or None if there are no calls or the cost of one is
            unknown.
        tokens_per_s: the output tokens per second from the first token to the last, or None if there are too
            few.
    """

    kinds: Mapping[str, Accuracy] = field(default_factory=dict[str, Accuracy])
    overall: Accuracy | None = None
    calls: int = 0
    usd_per_call: Decimal | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """Graded answer of one worker. It counts for `category`, if any, if its family has too few questions."""

    worker: str
    family: str
    category: str
    right: bool


@lru_cache(maxsize=8)
def measure_recorded(name: str) -> Mapping[str, CardMeasurement]:
    """Return the cached measurements of each model on the training side of a recorded pool, such as
    `recorded:FILE?part=train&difficulty=hard`.
    """
    spec = Spec.parse(name)
    if spec.name != "recorded":
        raise EvaluationError(f"{name!r} is not a recorded pool. Use 'recorded:FILE?part=train'.")
    if spec.options.get("part") != "train":
        raise EvaluationError(
            f"{name!r} includes held-out questions, which judge workers and conductors. "
            "Use only the training side: add part=train."
        )
    answers = [
        GradedAnswer(model, question.dataset, question.category, answer.s >= RIGHT)
        for _, question in select(spec)
        for model, answer in question.models.items()
    ]
    if not answers:
        raise EvaluationError(f"{name!r} has no recorded answers. Check its options.")
    return measure_answers(answers)


def measure_results(
    results: Iterable[Result], train_share: float = TRAIN_SHARE
) -> tuple[dict[str, CardMeasurement], int]:
    """Return the measurements from an evaluation's strategies `single:NAME`, and the number of held-out
    questions dropped.

    The newest answer to a question counts; `results` are oldest first. Outages are ignored, and refusals are
    wrong.
    """
    newest = {
        (result.strategy.removeprefix(SINGLE), result.question): result
        for result in results
        if result.strategy.startswith(SINGLE) and result.outcome.error not in TRANSIENT
    }
    if not newest:
        raise EvaluationError(
            "The results have no graded answers of single workers. "
            "Run `podium eval` with the strategy `single`, and pass its --out folder."
        )
    training = {key: each for key, each in newest.items() if not _is_held_out(each, train_share)}
    if not training:
        raise EvaluationError(
            "All results are for held-out questions of a recorded pool, which judge conductors. "
            "Evaluate on the training side: 'recorded:FILE?part=train'."
        )
    costs: dict[str, list[Decimal | None]] = defaultdict(list)
    for (worker, _), each in training.items():
        costs[worker].append(each.outcome.cost_usd)
    measured = measure_answers(_answer(worker, each) for (worker, _), each in training.items())
    left_out = len({key[1] for key in newest}) - len({key[1] for key in training})
    return {
        worker: CardMeasurement(each.kinds, each.overall, len(costs[worker]), mean_cost(costs[worker]))
        for worker, each in measured.items()
    }, left_out


def measure_answers(answers: Iterable[GradedAnswer]) -> dict[str, CardMeasurement]:
    """Return the accuracy of each worker by kind of question."""
    rights: dict[str, dict[tuple[str, str], list[bool]]] = defaultdict(lambda: defaultdict(list))
    for each in answers:
        rights[each.worker][kind_of(each.family), each.category].append(each.right)
    return {
        worker: CardMeasurement(
            _merge_rare(by_kind), accuracy([right for every in by_kind.values() for right in every])
        )
        for worker, by_kind in rights.items()
    }


def combine(measured: Sequence[Mapping[str, CardMeasurement]]) -> dict[str, CardMeasurement]:
    """Merge the measurements of each worker. If several sources have a figure, the first one is used."""
    merged: dict[str, CardMeasurement] = {}
    for source in measured:
        for worker, new in source.items():
            old = merged.get(worker, CardMeasurement())
            graded = old if old.overall else new
            costs = old if old.usd_per_call is not None else new
            merged[worker] = CardMeasurement(
                graded.kinds,
                graded.overall,
                old.calls + new.calls,
                costs.usd_per_call,
                old.tokens_per_s or new.tokens_per_s,
            )
    return merged


def _answer(worker: str, result: Result) -> GradedAnswer:
    if result.source == "recorded":  # its family is the category, and its id names the data set
        return GradedAnswer(worker, result.question.split("/")[1], result.family, result.correct)
    return GradedAnswer(worker, result.family, "", result.correct)


def _is_held_out(result: Result, train_share: float) -> bool:
    key = result.question.rpartition("/")[2]
    return result.source == "recorded" and side_of(key, train_share) != "train"


def _merge_rare(rights: Mapping[tuple[str, str], Sequence[bool]]) -> dict[str, Accuracy]:
    """Return the accuracy by kind. Kinds with few questions merge into their category, or are dropped."""
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for (kind, _), every in rights.items():
        by_kind[kind] += every
    rare = {kind for kind, every in by_kind.items() if len(every) < MIN_QUESTIONS}
    for (kind, category), every in rights.items():
        if kind in rare and category and kind_of(category) != kind:
            by_kind[kind_of(category)] += every
    large = {kind: every for kind, every in by_kind.items() if len(every) >= MIN_QUESTIONS}
    return {kind: accuracy(every) for kind, every in sorted(large.items())}


def mean_cost(costs: list[Decimal | None]) -> Decimal | None:
    """Return the mean, rounded to picodollars, or None if there are no costs or one of them is unknown."""
    spent = total(costs)
    return None if spent is None or not costs else round(spent / len(costs), 12).normalize()
