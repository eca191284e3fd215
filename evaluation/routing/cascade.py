"""MasRouter's cascade of choices (arXiv 2502.11133, yanweiyue/masrouter), in numpy: task class, mode, number of agents, workers.

A question's embedding (384) goes through one hidden layer (64); each head also sees the choice of the one before it. The task head
learns from labels; the other three by REINFORCE on `right - cost_weight * dollars`, less a running mean of it. Theirs has a
variational autoencoder where the mode head is here, a sigmoid of the agents' number where a softmax is here, and no running mean.

Shapes: B episodes, E = 384, H = 64, T task classes, M modes, N most agents, W workers.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from evaluation.routing.adam import Adam, Arrays

Floats = npt.NDArray[np.float64]
HIDDEN = 64
TASK_TEMPERATURE, MODE_TEMPERATURE = 0.5, 0.8
"""Of their softmaxes; the others are at 1."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One walk through the cascade.

    Args:
        mode: index.
        workers: indices, one for each agent; the same one may come again.
    """

    mode: int
    workers: tuple[int, ...]


@dataclass(slots=True)
class Cascade:
    """The heads. Make it with `new`."""

    weights: Arrays
    adam: Adam
    mean_reward: float = 0.0
    seen: int = 0
    rng: np.random.Generator = field(default_factory=np.random.default_rng)

    @classmethod
    def new(
        cls, inputs: int, tasks: int, modes: int, agents: int, workers: int, seed: int, rate: float = 0.01
    ) -> "Cascade":
        """Untrained: every mode, number and worker about equally likely."""
        rng = np.random.default_rng(seed)
        sizes = {"task": (HIDDEN, tasks), "mode": (HIDDEN + tasks, modes), "count": (HIDDEN + modes, agents),
                 "worker": (HIDDEN + modes, workers)}  # fmt: skip
        weights = {"in": rng.normal(0, 1 / np.sqrt(HIDDEN), (inputs, HIDDEN)), "in_bias": np.zeros(HIDDEN)}
        for name, (rows, columns) in sizes.items():
            weights[name] = rng.normal(0, 0.01, (rows, columns))
            weights[f"{name}_bias"] = np.zeros(columns)
        return cls(weights, Adam(rate), rng=rng)

    def walk(self, x_E: Floats, *, sample: bool) -> Choice:
        """Through all heads: by lot, or the likeliest choice of each (one worker for all agents then)."""
        h, task = self._begin(x_E[None])
        mode = self._draw(self._head("mode", np.hstack([h, task]), MODE_TEMPERATURE)[0], sample=sample)
        shown = np.hstack([h, np.eye(self.weights["mode"].shape[1])[[mode]]])
        agents = 1 + self._draw(self._head("count", shown)[0], sample=sample)
        chances = self._head("worker", shown)[0]
        if sample:
            return Choice(mode, tuple(self._draw(chances, sample=True) for _ in range(agents)))
        return Choice(mode, tuple(int(w) for w in spread(chances, agents)))

    def learn(
        self, x_B_E: Floats, tasks_B: npt.NDArray[np.int64], choices: list[Choice], rewards_B: Floats
    ) -> None:
        """One step on a batch of walks."""
        gradients = self.gradients(
            x_B_E, tasks_B, choices, rewards_B - (self.mean_reward if self.seen else rewards_B.mean())
        )
        self.adam.step(self.weights, gradients)
        self.seen += len(rewards_B)
        self.mean_reward += (rewards_B.mean() - self.mean_reward) * max(0.05, len(rewards_B) / self.seen)

    def loss(
        self, x_B_E: Floats, tasks_B: npt.NDArray[np.int64], choices: list[Choice], advantages_B: Floats
    ) -> float:
        """Task cross-entropy, and minus advantage times the log-chance of each choice; means over the batch.

        The mode head reads the task head's output as a given.
        """
        h, task = self._begin(x_B_E)
        rows = np.arange(len(x_B_E))
        modes = np.array([choice.mode for choice in choices])
        mode = self._head("mode", np.hstack([h, task]), MODE_TEMPERATURE)[rows, modes]
        shown = np.hstack([h, np.eye(self.weights["mode"].shape[1])[modes]])
        count, worker = self._head("count", shown), self._head("worker", shown)
        log_chance = np.log(mode) + np.log(count[rows, [len(c.workers) - 1 for c in choices]])
        log_chance += [sum(np.log(worker[i, w]) for w in c.workers) for i, c in enumerate(choices)]
        return float(np.mean(-np.log(task[rows, tasks_B]) - advantages_B * log_chance))

    def gradients(
        self, x_B_E: Floats, tasks_B: npt.NDArray[np.int64], choices: list[Choice], advantages_B: Floats
    ) -> Arrays:
        """Of `loss`."""
        b = len(x_B_E)
        h, task = self._begin(x_B_E)
        modes = np.array([choice.mode for choice in choices])
        eye = np.eye(self.weights["mode"].shape[1])
        read_mode, shown = np.hstack([h, task]), np.hstack([h, eye[modes]])
        picked = np.stack(
            [np.bincount(c.workers, minlength=self.weights["worker"].shape[1]) for c in choices]
        )
        agents = picked.sum(axis=1, keepdims=True)
        counts = np.eye(self.weights["count"].shape[1])[[len(c.workers) - 1 for c in choices]]
        pull = advantages_B[:, None] / b
        d_logits = {
            "task": (h, (task - np.eye(task.shape[1])[tasks_B]) / (b * TASK_TEMPERATURE)),
            "mode": (
                read_mode,
                pull * (self._head("mode", read_mode, MODE_TEMPERATURE) - eye[modes]) / MODE_TEMPERATURE,
            ),
            "count": (shown, pull * (self._head("count", shown) - counts)),
            "worker": (shown, pull * (agents * self._head("worker", shown) - picked)),
        }
        found: Arrays = {}
        d_h = np.zeros_like(h)
        for name, (read, d) in d_logits.items():
            found[name], found[f"{name}_bias"] = read.T @ d, d.sum(axis=0)
            d_h += (d @ self.weights[name].T)[:, :HIDDEN]
        d_in = d_h * (1 - h**2)
        found["in"], found["in_bias"] = x_B_E.T @ d_in, d_in.sum(axis=0)
        return found

    def _begin(self, x_B_E: Floats) -> tuple[Floats, Floats]:
        h = np.tanh(x_B_E @ self.weights["in"] + self.weights["in_bias"])
        return h, self._head("task", h, TASK_TEMPERATURE)

    def _head(self, name: str, read: Floats, temperature: float = 1.0) -> Floats:
        logits = (read @ self.weights[name] + self.weights[f"{name}_bias"]) / temperature
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        return powers / powers.sum(axis=1, keepdims=True)

    def _draw(self, chances: Floats, *, sample: bool) -> int:
        return int(self.rng.choice(len(chances), p=chances)) if sample else int(np.argmax(chances))


def spread(chances_W: Floats, agents: int) -> npt.NDArray[np.int64]:
    """`agents` workers in proportion to their chances, by largest remainders, the likeliest first."""
    exact = chances_W * agents
    counts = np.floor(exact).astype(np.int64)
    for w in np.argsort(counts - exact, kind="stable")[: agents - counts.sum()]:
        counts[w] += 1
    return np.repeat(np.argsort(-chances_W, kind="stable"), counts[np.argsort(-chances_W, kind="stable")])
