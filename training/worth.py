"""What each worker is worth for a question: how often it is right about such questions, less what it costs.

One answer is a coin that was tossed once: of ten workers that are right about a question, three may have been
lucky. Ridge regression over all answers says how often a worker is right about the questions of a family, and
how much less about the longer ones of it.
"""
# The types of scikit-learn are partial.
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import Ridge

from evaluation.questions import Question
from serving.settings.settings import SettingsError
from training.supervised_config import WorthConfig

Floats = npt.NDArray[np.float64]
ACROSS = 0.5
"""How much a question's size counts across families; within one it counts as 1."""
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class SoloAnswer:
    """A worker's answer to a question.

    Args:
        right: whether it was.
        usd: what it cost; None: unknown.
    """

    right: bool
    usd: float | None


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    """A question that every worker has answered.

    Args:
        question: what was asked.
        family: of the question.
        answers: by worker; the same workers for every question.
    """

    question: Question
    family: str
    answers: Mapping[str, SoloAnswer]


class Worths:
    """What workers are worth, learned from their answers.

    Args:
        answered: at least one. A question that stands there twice counts once.
        config: how strongly differences are held back, and what a dollar is worth.

    Raises:
        SettingsError: dollars count, and what a worker costs is unknown.
    """

    def __init__(self, answered: Sequence[AnsweredQuestion], config: WorthConfig) -> None:
        different = list({each.question.id: each for each in answered}.values())
        self._workers = tuple(different[0].answers)
        self._families = sorted({each.family for each in different})
        sizes = np.array([_sizes(each.question) for each in different])
        self._means, self._deviations = sizes.mean(0), np.maximum(sizes.std(0), 1e-9)
        self._usd = [config.usd_weight * _dollars(name, different, config) for name in self._workers]
        rows = [self._features(each.question, each.family) for each in different]
        right = [[float(each.answers[name].right) for name in self._workers] for each in different]
        self._model: Any = Ridge(alpha=config.ridge).fit(np.array(rows), np.array(right))

    def judge(self, question: Question, family: str) -> dict[str, float]:
        """By worker, the share of right answers to be expected less the dollars of one; below 0 where it costs
        more than it is worth.
        """
        shares = np.ravel(self._model.predict(self._features(question, family)[None]))
        return {
            name: min(max(float(share), 0.0), 1.0) - usd
            for name, share, usd in zip(self._workers, shares, self._usd, strict=True)
        }

    def _features(self, question: Question, family: str) -> Floats:
        """The family, the size, and the size within the family. A family that is not known has no place."""
        of_family = np.array([float(each == family) for each in self._families])
        size = (np.array(_sizes(question)) - self._means) / self._deviations
        return np.concatenate([of_family, ACROSS * size, np.outer(size, of_family).ravel()])


def _sizes(question: Question) -> tuple[float, float]:
    """How long a question is, and how many digits are in it."""
    return math.log(len(question.text)), float(len(_DIGIT.findall(question.text)))


def _dollars(worker: str, answered: Sequence[AnsweredQuestion], config: WorthConfig) -> float:
    """The mean cost of an answer."""
    costs = [each.answers[worker].usd for each in answered]
    known = [usd for usd in costs if usd is not None]
    if len(known) < len(costs) and config.usd_weight:
        raise SettingsError(
            f"worth.usd_weight counts dollars, and what {worker} costs is unknown: give it a price, or set "
            "usd_weight to 0."
        )
    return sum(known) / len(known) if known else 0.0
