"""MasRouter's cascade of choices (arXiv 2502.11133, yanweiyue/masrouter): task, mode, team size, workers.

A question's embedding (384) goes through one hidden layer (64). Each head also reads the choice of the head
before it. The task head learns from labels, the others by REINFORCE on the reward minus its running mean. The
original has a variational autoencoder as its mode head, a sigmoid instead of a softmax for the number of
agents, and no running mean.

Shapes: B episodes, E = 384, H = 64, T task classes, M modes, A most agents, W workers.
"""
# The types of torch are partial.
# pyright: reportUnknownMemberType=false

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
HIDDEN = 64
LEARNING_RATE = 0.01
TASK_TEMPERATURE, MODE_TEMPERATURE = 0.5, 0.8
"""Softmax temperatures of the task head and the mode head. The others use 1."""


@dataclass(frozen=True, slots=True)
class TeamChoice:
    """One pass through the cascade: the index of the mode, and of each agent's worker."""

    mode: int
    workers: tuple[int, ...]


class Cascade(nn.Module):
    """Heads of the cascade. Before training, every mode, number and worker is about equally likely."""

    def __init__(self, inputs: int, tasks: int, modes: int, agents: int, workers: int, seed: int) -> None:
        super().__init__()
        self._rng = np.random.default_rng(seed)
        self.hidden = self._layer(inputs, HIDDEN, HIDDEN**-0.5)
        self.task = self._layer(HIDDEN, tasks)
        self.mode = self._layer(HIDDEN + tasks, modes)
        self.count = self._layer(HIDDEN + modes, agents)
        self.worker = self._layer(HIDDEN + modes, workers)
        self._optimizer = torch.optim.Adam(self.parameters(), lr=LEARNING_RATE)
        self.mean_reward, self.episodes = 0.0, 0

    def _layer(self, inputs: int, outputs: int, scale: float = 0.01) -> nn.Linear:
        layer = nn.Linear(inputs, outputs, dtype=torch.float64)
        with torch.no_grad():
            layer.weight.copy_(torch.from_numpy(self._rng.normal(0, scale, (inputs, outputs)).T))
            layer.bias.zero_()
        return layer

    @torch.no_grad()
    def walk(self, x_E: Floats, *, sample: bool) -> TeamChoice:
        """Choose a mode and a team, by sampling or as the likeliest, with workers spread over the agents."""
        hidden, task = self._encode(torch.from_numpy(x_E)[None])
        mode = self._draw(self._mode(hidden, task), sample=sample)
        count, worker = self._team(hidden, torch.tensor([mode]))
        agents = 1 + self._draw(count, sample=sample)
        if sample:
            return TeamChoice(mode, tuple(self._draw(worker, sample=True) for _ in range(agents)))
        return TeamChoice(mode, tuple(int(w) for w in spread(worker.exp()[0].numpy(), agents)))

    def learn(self, x_B_E: Floats, tasks_B: Ints, choices: Sequence[TeamChoice], rewards_B: Floats) -> None:
        """Take one optimizer step on a batch of choices."""
        baseline = self.mean_reward if self.episodes else rewards_B.mean()
        self._optimizer.zero_grad()
        self.loss(x_B_E, tasks_B, choices, rewards_B - baseline).backward()
        self._optimizer.step()
        self.episodes += len(rewards_B)
        weight = max(0.05, len(rewards_B) / self.episodes)
        self.mean_reward += (rewards_B.mean() - self.mean_reward) * weight

    def loss(
        self, x_B_E: Floats, tasks_B: Ints, choices: Sequence[TeamChoice], advantages_B: Floats
    ) -> Tensor:
        """Return the batch's mean of the task's cross-entropy minus advantage times log-probability."""
        hidden, task = self._encode(torch.from_numpy(x_B_E))
        rows, modes = torch.arange(len(x_B_E)), torch.tensor([choice.mode for choice in choices])
        count, worker = self._team(hidden, modes)
        log_p = self._mode(hidden, task)[rows, modes]
        log_p = log_p + count[rows, torch.tensor([len(choice.workers) - 1 for choice in choices])]
        log_p = log_p + torch.stack(
            [worker[row, list(choice.workers)].sum() for row, choice in enumerate(choices)]
        )
        label_loss = -task[rows, torch.from_numpy(tasks_B)]
        return (label_loss - torch.from_numpy(advantages_B) * log_p).mean()

    def _encode(self, x_B_E: Tensor) -> tuple[Tensor, Tensor]:
        """Return the hidden layer, and the task head's log-probabilities."""
        hidden = torch.tanh(self.hidden(x_B_E))
        return hidden, torch.log_softmax(self.task(hidden) / TASK_TEMPERATURE, dim=1)

    def _mode(self, hidden: Tensor, task: Tensor) -> Tensor:
        """Return log-probabilities of modes. The task head's output is an input without gradient."""
        logits = self.mode(torch.hstack([hidden, task.detach().exp()]))
        return torch.log_softmax(logits / MODE_TEMPERATURE, dim=1)

    def _team(self, hidden: Tensor, modes_B: Tensor) -> tuple[Tensor, Tensor]:
        """Return log-probabilities of the number of agents, and of workers."""
        inputs = torch.hstack([hidden, one_hot(modes_B, self.mode.out_features)])
        return torch.log_softmax(self.count(inputs), dim=1), torch.log_softmax(self.worker(inputs), dim=1)

    def _draw(self, log_p: Tensor, *, sample: bool) -> int:
        p = log_p.exp()[0].numpy()
        return int(self._rng.choice(len(p), p=p)) if sample else int(np.argmax(p))


def spread(chances_W: Floats, agents: int) -> Ints:
    """Return `agents` workers in proportion to their chances, by largest remainders, the likeliest first."""
    exact = chances_W * agents
    counts = np.floor(exact).astype(np.int64)
    counts[np.argsort(counts - exact, kind="stable")[: agents - counts.sum()]] += 1
    order = np.argsort(-chances_W, kind="stable")
    return np.repeat(order, counts[order])
