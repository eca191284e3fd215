"""Figures and how sure they are. Pure numbers: knows neither strategies nor reports.

The error of an accuracy is the binomial standard error; its interval is Wilson's, which also holds near 0 and
1. Two strategies are compared on the same questions by a paired bootstrap: questions are drawn with
replacement, both answers of a question together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The part that is right.

    Args:
        n: questions.
        mean: 0 to 1; NaN where there are none.
        standard_error: of the mean.
        low, high: Wilson's 95 % interval.
    """

    n: int
    mean: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """How much more often the first of two is right than the second, on the same questions.

    Args:
        n: questions that both answered.
        mean: first minus second.
        low, high: the 95 % interval of the bootstrap.
        p: two-sided: how often a difference at least so far from 0 on the other side of 0 comes from
            resampling the questions.
    """

    n: int
    mean: float
    low: float
    high: float
    p: float


def accuracy(right: Sequence[bool]) -> Accuracy:
    """Of one strategy."""
    n = len(right)
    if n == 0:
        return Accuracy(0, math.nan, math.nan, math.nan, math.nan)
    mean = sum(right) / n
    centre = (mean + Z95**2 / (2 * n)) / (1 + Z95**2 / n)
    half = Z95 / (1 + Z95**2 / n) * math.sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n * n))
    return Accuracy(
        n, mean, math.sqrt(mean * (1 - mean) / n), max(0.0, centre - half), min(1.0, centre + half)
    )


def bootstrap_difference(
    first: Sequence[bool], second: Sequence[bool], seed: int = 0, resamples: int = RESAMPLES
) -> Difference:
    """Compare two strategies.

    Args:
        first: right or not, question by question.
        second: the same for the other, in the same order.
        seed: the same one gives the same figures.
        resamples: how often the questions are resampled.

    Raises:
        ValueError: they are not equally long, or empty.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} answers cannot be paired")
    difference = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    n = len(difference)
    # Only how many questions each one wins matters, so drawing n questions is drawing three counts.
    parts = np.array([np.sum(difference == sign) for sign in (1, 0, -1)]) / n
    drawn = np.random.default_rng(seed).multinomial(n, parts, size=resamples)
    means = (drawn[:, 0] - drawn[:, 2]) / n
    low, high = np.quantile(means, [0.025, 0.975])
    below, above = np.sum(means <= 0), np.sum(means >= 0)
    p = min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))
    return Difference(n, float(difference.mean()), float(low), float(high), float(p))


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which of the points (cost, accuracy) no other one beats: indices, by rising cost.

    A point is beaten by one that costs no more and is right more often, or costs less and is right as often.
    """
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front
