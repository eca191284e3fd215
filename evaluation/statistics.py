"""Accuracies, paired comparisons and Pareto fronts.

An accuracy has the binomial standard error, and Wilson's interval, which also holds near 0 and 1. Two
strategies are compared on the same questions by a paired bootstrap: questions are drawn with replacement, and
both answers to a question are drawn together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
Z95 = 1.959964


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Share of right answers of `n`, NaN for none, with standard error and Wilson's 95 % interval."""

    n: int
    mean: float
    standard_error: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in accuracy between two strategies on the same questions.

    Args:
        mean: the accuracy of the first minus that of the second.
        p: the two-sided p-value: twice the share of resampled means on the rarer side of 0, at most 1.
    """

    n: int
    mean: float
    low: float
    high: float
    p: float


def accuracy(right: Sequence[bool]) -> Accuracy:
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
    """Compare two strategies by a paired bootstrap over right answers in the same order. The seed determines
    the figures.
    """
    if len(first) != len(second) or not first:
        raise ValueError(f"{len(first)} and {len(second)} answers cannot be paired")
    difference = np.asarray(first, dtype=np.int64) - np.asarray(second, dtype=np.int64)
    n = len(difference)
    # A question is a win, a loss or a tie, so drawing n questions is drawing three counts.
    parts = np.array([np.sum(difference == sign) for sign in (1, 0, -1)]) / n
    counts = np.random.default_rng(seed).multinomial(n, parts, size=resamples)
    means = (counts[:, 0] - counts[:, 2]) / n
    low, high = np.quantile(means, [0.025, 0.975])
    below, above = np.sum(means <= 0), np.sum(means >= 0)
    p = min(1.0, 2 * (min(below, above) + 1) / (resamples + 1))
    return Difference(n, float(difference.mean()), float(low), float(high), float(p))


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Return the indices of the points (cost, accuracy) that no other beats in both, by rising cost."""
    order = sorted(range(len(points)), key=lambda i: (points[i][0], -points[i][1]))
    front: list[int] = []
    for index in order:
        if not front or points[index][1] > points[front[-1]][1]:
            front.append(index)
    return front
