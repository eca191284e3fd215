"""A learned router over all workers: for each one the chance that it is right, by logistic regression on the embedding.

The choice is the highest chance less `price_of_right` times cost; the factor is found so that the mean cost stays at a target.

Shapes: Q questions, W workers, E = 384.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
STRENGTH = 10.0
"""scikit-learn's C: the higher, the less the weights are held down."""


@dataclass(frozen=True, slots=True)
class Chances:
    """Trained regressions, all workers at once."""

    weights_E_W: Floats
    bias_W: Floats

    def chances(self, x_Q_E: Floats) -> Floats:
        """Q x W, 0 to 1."""
        return np.exp(-np.logaddexp(0, -(x_Q_E @ self.weights_E_W + self.bias_W)))


def fitted(x_Q_E: Floats, right_Q_W: Bools) -> Chances:
    """One regression a worker; a constant one where it was always right, or never."""
    from sklearn.linear_model import LogisticRegression

    columns, biases = [], []
    for right_Q in right_Q_W.T:
        if right_Q.all() or not right_Q.any():
            columns.append(np.zeros(x_Q_E.shape[1]))
            biases.append(20.0 if right_Q.all() else -20.0)
            continue
        model = LogisticRegression(C=STRENGTH, max_iter=500).fit(x_Q_E, right_Q)
        columns.append(model.coef_[0])
        biases.append(float(model.intercept_[0]))
    return Chances(np.stack(columns, axis=1), np.array(biases))


def out_of_fold(x_Q_E: Floats, right_Q_W: Bools, seed: int, folds: int = 5) -> Floats:
    """Chances of each question, Q x W, by regressions that have not seen it."""
    chances = np.zeros(right_Q_W.shape)
    parts = np.array_split(np.random.default_rng(seed).permutation(len(x_Q_E)), min(folds, len(x_Q_E)))
    for part in parts:
        rest = np.setdiff1d(np.arange(len(x_Q_E)), part)
        chances[part] = fitted(x_Q_E[rest], right_Q_W[rest]).chances(x_Q_E[part])
    return chances


def chosen(chances_Q_W: Floats, usd_W: Floats, factor: float) -> npt.NDArray[np.int64]:
    """The worker for each question: the best chance after its cost is taken off."""
    return np.argmax(chances_Q_W - factor * usd_W, axis=1)


def factor_for(chances_Q_W: Floats, usd_W: Floats, target_usd: float) -> float:
    """The lowest factor at which the mean cost of the choices is at most `target_usd`.

    Raises:
        ValueError: even the cheapest worker costs more.
    """
    if usd_W.min() > target_usd:
        raise ValueError(f"even the cheapest worker costs {usd_W.min():g} US$ a question")
    low, high = 0.0, 1.0

    def cost(factor: float) -> float:
        return float(usd_W[chosen(chances_Q_W, usd_W, factor)].mean())

    if cost(0.0) <= target_usd:
        return 0.0
    while cost(high) > target_usd:
        high *= 2
        if high > 1e12:
            return high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if cost(middle) <= target_usd else (middle, high)
    return high
