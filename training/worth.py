"""Estimate the worth of each worker for a question: its expected accuracy on such questions minus its cost.

A single answer is like a coin toss: of ten workers that answered a question correctly, three may have been
lucky. Ridge regression over all answers estimates how often a worker is right on the questions of a family,
and how much less often on the longer ones.
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

from evaluation.questions import Question
from serving.settings.settings import SettingsError
from training.supervised_config import WorthConfig

Floats = npt.NDArray[np.float64]
ACROSS = 0.5
"""Weight of a question's size across all families, relative to its weight of 1 within a family."""
_DIGIT = re.compile(r"\d")


@dataclass(frozen=True, slots=True)
class SoloAnswer:
    """A worker's own answer to a question, and its cost if known."""

    right: bool
    usd: float | None


@dataclass(frozen=True, slots=True)
class AnsweredQuestion:
    question: Question
    family: str
    answers: Mapping[str, SoloAnswer]


class Worths:
    """Estimates of the workers' worth, fitted to their answers, of which duplicates count once."""

    def __init__(self, answered: Sequence[AnsweredQuestion], config: WorthConfig) -> None:
        different = list({each.question.id: each for each in answered}.values())
        from sklearn.linear_model import Ridge  # slow import (1.5 s), which most runs do not need

        self._workers = tuple(different[0].answers)
        self._families = sorted({each.family for each in different})
        sizes = np.array([_sizes(each.question) for each in different])
        self._means, self._deviations = sizes.mean(0), np.maximum(sizes.std(0), 1e-9)
        self._usd = [config.usd_weight * _dollars(name, different, config) for name in self._workers]
        rows = [self._features(each.question, each.family) for each in different]
        right = [[float(each.answers[name].right) for name in self._workers] for each in different]
        self._model: Any = Ridge(alpha=config.ridge).fit(np.array(rows), np.array(right))

    def judge(self, question: Question, family: str) -> dict[str, float]:
        """Return each worker's expected accuracy minus weighted cost, negative if too expensive."""
        shares = np.ravel(self._model.predict(self._features(question, family)[None]))
        return {
            name: min(max(float(share), 0.0), 1.0) - usd
            for name, share, usd in zip(self._workers, shares, self._usd, strict=True)
        }

    def _features(self, question: Question, family: str) -> Floats:
        """Return one-hot family, size, and size within the family. All are zero for unknown families."""
        of_family = np.array([float(each == family) for each in self._families])
        size = (np.array(_sizes(question)) - self._means) / self._deviations
        return np.concatenate([of_family, ACROSS * size, np.outer(size, of_family).ravel()])


def _sizes(question: Question) -> tuple[float, float]:
    """Return the logarithm of the question's length, and the number of digits in the question."""
    return math.log(len(question.text)), float(len(_DIGIT.findall(question.text)))


def _dollars(worker: str, answered: Sequence[AnsweredQuestion], config: WorthConfig) -> float:
    costs = [each.answers[worker].usd for each in answered]
    known_costs = [usd for usd in costs if usd is not None]
    if len(known_costs) < len(costs) and config.usd_weight:
        raise SettingsError(
            f"worth.usd_weight needs the cost of {worker}, which is unknown. Set the worker's price, or set "
            "usd_weight to 0."
        )
    return sum(known_costs) / len(known_costs) if known_costs else 0.0
