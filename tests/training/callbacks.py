"""Trainer callbacks for tests that interrupt or observe a training, or let its workers fail."""

import os
import signal
from typing import Any

import torch
from transformers import TrainerCallback

from tests.training import unavailable_skills


class Kill(TrainerCallback):
    """Interrupt the run in step `at`, as Ctrl-C or a crash does."""

    def __init__(self, at: int, *, politely: bool) -> None:
        self.at, self.politely = at, politely

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.at:
            if self.politely:
                os.kill(os.getpid(), signal.SIGINT)
            else:
                raise MemoryError("the machine is gone")


class Weights(TrainerCallback):
    """Record the weights and the optimizer's state around each step."""

    def __init__(self) -> None:
        self.weights: list[list[torch.Tensor]] = []
        self.moments: list[list[torch.Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.weights.append([p.detach().clone() for p in kwargs["model"].parameters()])
        state_by_parameter = kwargs["optimizer"].state_dict()["state"]
        self.moments.append([s["exp_avg"].clone() for s in state_by_parameter.values()])


class Outage(TrainerCallback):
    """Let the workers fail in the third step, and after the fourth."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        unavailable_skills.CALLS_LEFT = None if state.global_step in (0, 1, 3) else 0
