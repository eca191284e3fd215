"""What each worker is worth for a question that all of them have answered.

One answer is a coin that was tossed once: of ten workers that are right about a question, three may have been
lucky. How often a worker is right about the questions of a family, less what it costs, says whom to ask next.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from serving.settings.settings import SettingsError
from training.supervised_config import WorthConfig

_ALL = ""
"""In the place of a family."""


@dataclass(frozen=True, slots=True)
class SoloAnswer:
    """A worker's answer to a question.

    Args:
        question: its id.
        family: of the question.
        right: whether the answer was.
        usd: what it cost; None: unknown.
    """

    question: str
    family: str
    right: bool
    usd: float | None


def worths(answers: Sequence[Mapping[str, SoloAnswer]], config: WorthConfig) -> list[dict[str, float]]:
    """Of each question, what each of its workers is worth; below 0 where it costs more than it is worth.

    Args:
        answers: one mapping a question, by worker. An answer that stands there twice counts once.
        config: how families are smoothed, and what a dollar is worth.

    Raises:
        SettingsError: dollars count, and what a worker costs is unknown.
    """
    asked, right = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    dollars: dict[str, list[float]] = defaultdict(list)
    different = {(worker, answer.question): answer for each in answers for worker, answer in each.items()}
    for (worker, _), answer in different.items():
        for family in (answer.family, _ALL):
            asked[worker, family] += 1
            right[worker, family] += answer.right
        if answer.usd is not None:
            dollars[worker].append(answer.usd)
        elif config.usd_weight:
            raise SettingsError(
                f"worth.usd_weight counts dollars, and what {worker} costs is unknown: give it a price, or set "
                "usd_weight to 0."
            )

    def worth(worker: str, family: str) -> float:
        average = right[worker, _ALL] / asked[worker, _ALL]
        share = (right[worker, family] + config.prior * average) / (asked[worker, family] + config.prior)
        known = dollars[worker]
        return share - config.usd_weight * (sum(known) / len(known) if known else 0.0)

    return [{worker: worth(worker, answer.family) for worker, answer in each.items()} for each in answers]
