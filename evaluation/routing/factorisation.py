"""RouteLLM's matrix factorisation (arXiv 2406.18665, lm-sys/RouteLLM `routers/matrix_factorization`).

The score of worker w for question q is `head · (v_w ⊙ (P x_q)) + b_w`, with v_w of unit length. The
probability that w beats u is sigmoid(score(w) - score(u)). It is trained on pairs of workers of which one was
right and the other was not. The original is trained on human votes, with OpenAI embeddings of 1536 numbers
and an inner size of 128; this one on right and wrong answers, with all-MiniLM-L6-v2's 384 numbers.

Shapes: B pairs, Q questions, W workers, E = 384, D = inner size.
"""
# The types of torch are partial.
# pyright: reportUnknownMemberType=false

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, softplus

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


class Factorisation(nn.Module):
    """Model that scores every worker for a question."""

    def __init__(self, inputs: int, workers: int, inner: int, rng: np.random.Generator) -> None:
        super().__init__()
        self.worker_W_D = nn.Parameter(torch.from_numpy(rng.normal(0, 0.3, (workers, inner))))
        self.project_D_E = nn.Parameter(torch.from_numpy(rng.normal(0, inputs**-0.5, (inner, inputs))))
        self.head_D = nn.Parameter(torch.from_numpy(rng.normal(0, 0.3, inner)))
        self.bias_W = nn.Parameter(torch.zeros(workers, dtype=torch.float64))

    def forward(self, x_Q_E: Tensor) -> Tensor:
        """Return scores, Q x W."""
        weights_W_D = normalize(self.worker_W_D, dim=1) * self.head_D
        return (x_Q_E @ self.project_D_E.T) @ weights_W_D.T + self.bias_W

    def win_rate(self, x_Q_E: Floats, strong: int, weak: int) -> Floats:
        """Return for each question the probability that `strong` is right if exactly one of the two is."""
        with torch.no_grad():
            scores = self(torch.from_numpy(x_Q_E))
            return torch.sigmoid(scores[:, strong] - scores[:, weak]).numpy()


def fit(
    x_Q_E: Floats,
    right_Q_W: Bools,
    seed: int,
    inner: int = 64,
    epochs: int = 8,
    batch: int = 256,
    rate: float = 3e-3,
) -> Factorisation:
    """Train on every pair of workers of which one was right on a question. Raise ValueError if there is none."""
    pairs = win_pairs(right_Q_W)
    if not len(pairs):
        raise ValueError("no two workers differ on any training question")
    rng = np.random.default_rng(seed)
    model, x = Factorisation(x_Q_E.shape[1], right_Q_W.shape[1], inner, rng), torch.from_numpy(x_Q_E)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=1e-2)
    for _ in range(epochs):
        order: Tensor = torch.from_numpy(rng.permutation(pairs))
        for start in range(0, len(order), batch):
            question, winner, loser = order[start : start + batch].T
            scores = model(x[question])
            margin = scores.gather(1, winner[:, None]) - scores.gather(1, loser[:, None])
            optimizer.zero_grad()
            softplus(-margin).mean().backward()
            optimizer.step()
    return model


def win_pairs(right_Q_W: Bools) -> Ints:
    """Return the rows to train on: a question, a worker that was right, and a worker that was not."""
    return np.argwhere(right_Q_W[:, :, None] & ~right_Q_W[:, None, :])


def threshold(win_rate_Q: Floats, share: float) -> float:
    """Return the lowest win rate at which the strong worker is called, so that it gets `share`."""
    n = round(share * len(win_rate_Q))
    ordered = np.sort(win_rate_Q)[::-1]
    if n in (0, len(ordered)):
        return float("-inf") if n else float("inf")  # always or never, for other questions too
    return float(ordered[n - 1])
