"""Router over all workers. Logistic regression on embeddings predicts for each worker whether it is right.

The router chooses the worker with the highest value of probability minus `factor` times cost. The factor is
chosen so that the mean cost meets a target.

Shapes: Q questions, W workers, E = 384.
"""
# The types of scikit-learn are partial.
# pyright: reportMissingTypeStubs=false

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
FOLDS = 5
STRENGTH = 10.0
"""scikit-learn's C: a higher value means weaker regularisation."""
CERTAIN = 20.0
"""Logit of a worker that was always right. For a worker that never was, it is negated."""


@dataclass(frozen=True, slots=True)
class WorkerRegressions:
    weights_E_W: Floats
    bias_W: Floats

    def chances(self, x_Q_E: Floats) -> Floats:
        """Return probabilities (0 to 1), Q x W."""
        return np.exp(-np.logaddexp(0, -(x_Q_E @ self.weights_E_W + self.bias_W)))


def fit(x_Q_E: Floats, right_Q_W: Bools) -> WorkerRegressions:
    """Fit one regression per worker. For a worker that was always or never right, use a constant."""
    from sklearn.linear_model import LogisticRegression  # a second and a half, for other strategies too

    weights_E_W = np.zeros((x_Q_E.shape[1], right_Q_W.shape[1]))
    bias_W = np.where(right_Q_W.all(axis=0), CERTAIN, -CERTAIN)
    for w in np.flatnonzero(right_Q_W.any(axis=0) & ~right_Q_W.all(axis=0)):
        model: Any = LogisticRegression(C=STRENGTH, max_iter=500)
        model.fit(x_Q_E, right_Q_W[:, w])
        weights_E_W[:, w], bias_W[w] = model.coef_[0], model.intercept_[0]
    return WorkerRegressions(weights_E_W, bias_W)


def out_of_fold(x_Q_E: Floats, right_Q_W: Bools, seed: int) -> Floats:
    """Return each worker's chance on each question, Q x W, from regressions fitted on others."""
    chances = np.zeros(right_Q_W.shape)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(x_Q_E)), min(FOLDS, len(x_Q_E)))
    for part in parts:
        rest = np.setdiff1d(np.arange(len(x_Q_E)), part)
        chances[part] = fit(x_Q_E[rest], right_Q_W[rest]).chances(x_Q_E[part])
    return chances


def choose(chances_Q_W: Floats, usd_W: Floats, factor: float) -> npt.NDArray[np.int64]:
    """Return the index of the chosen worker for each question."""
    return np.argmax(chances_Q_W - factor * usd_W, axis=1)


def factor_for(chances_Q_W: Floats, usd_W: Floats, target_usd: float) -> float:
    """Return the lowest factor with a mean cost of at most `target_usd`. Raise ValueError if there is none."""
    if usd_W.min() > target_usd:
        raise ValueError(f"even the cheapest worker costs ${usd_W.min():g} per question")

    def affordable(factor: float) -> bool:
        return float(usd_W[choose(chances_Q_W, usd_W, factor)].mean()) <= target_usd

    low, high = 0.0, 1.0
    if affordable(low):
        return low
    while not affordable(high) and high <= 1e12:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if affordable(middle) else (middle, high)
    return high
