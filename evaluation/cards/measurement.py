"""What was measured of each worker: how often it is right at what, what a call costs, how fast it writes.

Two sources, each a function: the results of `podium eval` and a recorded pool; `records.py` has the third.
Nothing here is a guess: a figure without enough measurements behind it is None, or not there.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache

from conductor.model.usage import total
from evaluation.cards.families import kind_of
from evaluation.errors import EvaluationError
from evaluation.recordings import RIGHT, TRAIN_SHARE, side_of
from evaluation.results import TRANSIENT, Result
from evaluation.sources.recorded import select
from evaluation.spec import Spec
from evaluation.statistics import Accuracy, accuracy

MIN_QUESTIONS = 10
"""A kind with fewer is merged into its category, and says nothing by itself."""
SINGLE = "single:"
"""The strategy of `podium eval` that asks one worker alone."""


@dataclass(frozen=True, slots=True)
class CardMeasurement:
    """What is known of one worker.

    Args:
        kinds: how often it is right, by the name of a kind of question.
        overall: over all graded questions; None where none was graded.
        calls: whose cost and speed were looked at.
        usd_per_call: the mean; None where one call's cost is unknown, or there are none.
        tokens_per_s: output tokens a second from the first token to the last; None where too few were seen.
    """

    kinds: Mapping[str, Accuracy] = field(default_factory=dict[str, Accuracy])
    overall: Accuracy | None = None
    calls: int = 0
    usd_per_call: Decimal | None = None
    tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class GradedAnswer:
    """One answer of one worker. `category` takes in what is too rare to stand by itself; empty: nothing does."""

    worker: str
    family: str
    category: str
    right: bool


@lru_cache(maxsize=8)
def measure_recorded(name: str) -> Mapping[str, CardMeasurement]:
    """What the training side of a recorded pool says of its models, by model; computed once.

    Args:
        name: such as `recorded:FILE?part=train&difficulty=hard`, as `podium eval` takes it.

    Raises:
        EvaluationError: it is no recorded pool, has no questions, or takes in held-out ones.
    """
    spec = Spec.parse(name)
    if spec.name != "recorded":
        raise EvaluationError(f"{name!r} is no recorded pool; write 'recorded:FILE?part=train'.")
    if spec.options.get("part") != "train":
        raise EvaluationError(
            f"{name!r} takes in held-out questions, by which workers and conductors are judged. "
            "Cards are written from the training side: add part=train."
        )
    answers = [
        GradedAnswer(model, question.dataset, question.category, answer.s >= RIGHT)
        for _, question in select(spec)
        for model, answer in question.models.items()
    ]
    if not answers:
        raise EvaluationError(f"{name!r} has no answers. Check its options.")
    return measure_answers(answers)


def measure_results(
    results: Iterable[Result], train_share: float = TRAIN_SHARE
) -> tuple[dict[str, CardMeasurement], int]:
    """What the strategies `single:NAME` of an evaluation say, by worker.

    Of several answers to one question the newest counts; an outage is not counted, a refusal is wrong.

    Args:
        results: oldest first.
        train_share: of a recorded pool's questions; those of the other side are left out.

    Returns:
        The measurements, and how many held-out questions were left out.

    Raises:
        EvaluationError: nothing is left to measure by.
    """
    newest = {
        (result.strategy.removeprefix(SINGLE), result.question): result
        for result in results
        if result.strategy.startswith(SINGLE) and result.outcome.error not in TRANSIENT
    }
    if not newest:
        raise EvaluationError(
            "The results have no graded answers of a worker by itself. "
            "Run `podium eval` with the strategy `single`, and name its --out folder."
        )
    kept = {key: each for key, each in newest.items() if not _is_held_out(each, train_share)}
    if not kept:
        raise EvaluationError(
            "All the results are about held-out questions of a recorded pool, by which conductors are judged. "
            "Evaluate on its training side: 'recorded:FILE?part=train'."
        )
    costs: dict[str, list[Decimal | None]] = defaultdict(list)
    for (worker, _), each in kept.items():
        costs[worker].append(each.outcome.cost_usd)
    measured = measure_answers(_answer(worker, each) for (worker, _), each in kept.items())
    left_out = len({key[1] for key in newest}) - len({key[1] for key in kept})
    return {
        worker: CardMeasurement(each.kinds, each.overall, len(costs[worker]), mean_cost(costs[worker]))
        for worker, each in measured.items()
    }, left_out


def measure_answers(answers: Iterable[GradedAnswer]) -> dict[str, CardMeasurement]:
    """How often each worker is right, by kind of question."""
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
    """All that is known of each worker. Of what several sources say the first one's word holds."""
    found: dict[str, CardMeasurement] = {}
    for source in measured:
        for worker, new in source.items():
            old = found.get(worker, CardMeasurement())
            graded = old if old.overall else new
            costs = old if old.usd_per_call is not None else new
            found[worker] = CardMeasurement(
                graded.kinds,
                graded.overall,
                old.calls + new.calls,
                costs.usd_per_call,
                old.tokens_per_s or new.tokens_per_s,
            )
    return found


def _answer(worker: str, result: Result) -> GradedAnswer:
    if result.source == "recorded":  # its family is the category, and its id names the data set
        return GradedAnswer(worker, result.question.split("/")[1], result.family, result.correct)
    return GradedAnswer(worker, result.family, "", result.correct)


def _is_held_out(result: Result, train_share: float) -> bool:
    key = result.question.rpartition("/")[2]
    return result.source == "recorded" and side_of(key, train_share) != "train"


def _merge_rare(rights: Mapping[tuple[str, str], Sequence[bool]]) -> dict[str, Accuracy]:
    """By kind; a kind with few questions goes into its category, and one that is still small is left out."""
    by_kind: dict[str, list[bool]] = defaultdict(list)
    for (kind, _), every in rights.items():
        by_kind[kind] += every
    rare = {kind for kind, every in by_kind.items() if len(every) < MIN_QUESTIONS}
    for (kind, category), every in rights.items():
        if kind in rare and category and kind_of(category) != kind:
            by_kind[kind_of(category)] += every
    kept = {kind: every for kind, every in by_kind.items() if len(every) >= MIN_QUESTIONS}
    return {kind: accuracy(every) for kind, every in sorted(kept.items())}


def mean_cost(costs: list[Decimal | None]) -> Decimal | None:
    """In whole picodollars; None where one is unknown, or there are none."""
    spent = total(costs)
    return None if spent is None or not costs else round(spent / len(costs), 12).normalize()
