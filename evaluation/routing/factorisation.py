"""RouteLLM's matrix factorisation (arXiv 2406.18665, lm-sys/RouteLLM `routers/matrix_factorization`), in numpy.

The score of worker w for question q is `head · (v_w ⊙ (P x_q))`, with v_w of unit length; the chance that w beats u is
sigmoid(score(w) - score(u)). It is trained on pairs of workers of which one was right and the other was not. Theirs are human
votes, 1536 numbers of an OpenAI embedding and 128 inside; ours are right and wrong, and 384 of all-MiniLM-L6-v2.

Shapes: B pairs, Q questions, W workers, E = 384, D = inner size.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from evaluation.routing.adam import Adam, Arrays

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Factorisation:
    """A trained one."""

    weights: Arrays

    def scores(self, x_Q_E: Floats) -> Floats:
        """Q x W."""
        return _scores(self.weights, x_Q_E)

    def win_rate(self, x_Q_E: Floats, strong: int, weak: int) -> Floats:
        """For each question the chance that `strong` is right where `weak` is not, of the two."""
        scores = self.scores(x_Q_E)
        return sigmoid(scores[:, strong] - scores[:, weak])


def fitted(
    x_Q_E: Floats,
    right_Q_W: Bools,
    seed: int,
    inner: int = 64,
    epochs: int = 8,
    batch: int = 256,
    rate: float = 3e-3,
) -> Factorisation:
    """Train on every pair of workers that differ on a question.

    Raises:
        ValueError: no two workers differ on any question.
    """
    pairs = pairs_of(right_Q_W)
    if not len(pairs):
        raise ValueError("no two workers differ on any training question")
    rng = np.random.default_rng(seed)
    weights: Arrays = {
        "v": rng.normal(0, 0.3, (right_Q_W.shape[1], inner)),
        "p": rng.normal(0, 1 / np.sqrt(x_Q_E.shape[1]), (inner, x_Q_E.shape[1])),
        "head": rng.normal(0, 0.3, inner),
        "bias": np.zeros(right_Q_W.shape[1]),
    }
    adam = Adam(rate, decay=1e-2)
    for _ in range(epochs):
        order = rng.permutation(len(pairs))
        for start in range(0, len(pairs), batch):
            adam.step(weights, gradients(weights, x_Q_E, pairs[order[start : start + batch]]))
    return Factorisation(weights)


def pairs_of(right_Q_W: Bools) -> Ints:
    """Rows (question, worker that was right, worker that was not)."""
    won = right_Q_W[:, :, None] & ~right_Q_W[:, None, :]
    return np.argwhere(won)


def loss(weights: Arrays, x_Q_E: Floats, pairs_B_3: Ints) -> float:
    """Mean of -log(chance that the one who was right wins)."""
    scores = _scores(weights, x_Q_E)
    q, w, u = pairs_B_3.T
    return float(np.mean(np.logaddexp(0, scores[q, u] - scores[q, w])))


def gradients(weights: Arrays, x_Q_E: Floats, pairs_B_3: Ints) -> Arrays:
    """Of `loss`."""
    q, w, u = pairs_B_3.T
    x_B_E = x_Q_E[q]
    lengths = np.linalg.norm(weights["v"], axis=1, keepdims=True)
    unit = weights["v"] / lengths
    hidden_B_D = x_B_E @ weights["p"].T
    difference_B_D = unit[w] - unit[u]
    margin = (hidden_B_D * difference_B_D) @ weights["head"] + weights["bias"][w] - weights["bias"][u]
    pull = -sigmoid(-margin) / len(pairs_B_3)
    d_hidden = pull[:, None] * weights["head"] * difference_B_D
    d_unit = np.zeros_like(unit)
    per_worker = pull[:, None] * weights["head"] * hidden_B_D
    np.add.at(d_unit, w, per_worker)
    np.add.at(d_unit, u, -per_worker)
    d_bias = np.zeros_like(weights["bias"])
    np.add.at(d_bias, w, pull)
    np.add.at(d_bias, u, -pull)
    d_v = (d_unit - unit * np.sum(d_unit * unit, axis=1, keepdims=True)) / lengths
    return {
        "v": d_v,
        "p": d_hidden.T @ x_B_E,
        "head": (pull[:, None] * hidden_B_D * difference_B_D).sum(axis=0),
        "bias": d_bias,
    }


def _scores(weights: Arrays, x_Q_E: Floats) -> Floats:
    unit = weights["v"] / np.linalg.norm(weights["v"], axis=1, keepdims=True)
    return (x_Q_E @ weights["p"].T) @ (unit * weights["head"]).T + weights["bias"]


def sigmoid(z: Floats) -> Floats:
    """Without overflow."""
    return np.exp(-np.logaddexp(0, -z))


def threshold(win_rate_Q: Floats, share: float) -> float:
    """The win rate from which on the strong worker is called, so that it is called for `share` of these questions."""
    n = round(share * len(win_rate_Q))
    ordered = np.sort(win_rate_Q)[::-1]
    if n in (0, len(ordered)):
        return float("-inf") if n else float("inf")  # always or never, whatever other questions look like
    return float(ordered[n - 1])
