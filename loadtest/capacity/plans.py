"""Plans drawn from a mix: the number of steps, the steps that each one reads, and the tokens."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from loadtest.capacity.inputs import Inputs, Tokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """One step of a plan.

    Args:
        reads: the indices of the earlier steps that it reads.
        written_tokens: the tokens that the conductor writes for the step.
        input_tokens: the tokens of the step's prompt, including the outputs that it reads.
    """

    worker: str
    reads: tuple[int, ...]
    written_tokens: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class SimulatedPlan:
    """Steps in the order in which they are written. The last one's output is the answer."""

    steps: tuple[SimulatedStep, ...]
    question_tokens: int
    second_look: bool = False
    """Whether the conductor reads the outcome before the answer is sent."""

    @property
    def review_tokens(self) -> int:
        """Tokens that the conductor reads for its second look, in addition to its prompt."""
        return self.question_tokens + sum(self.steps[index].output_tokens for index in self.reachable)

    @property
    def reachable(self) -> frozenset[int]:
        """Indices of the last step and of all that it reads, directly or not. Other steps never run."""
        indices = {len(self.steps) - 1}
        for index in range(len(self.steps) - 1, -1, -1):
            if index in indices:
                indices.update(self.steps[index].reads)
        return frozenset(indices)


def tokens(of: Tokens, rng: np.random.Generator) -> int:
    """Draw a lognormal number of tokens, at least 1."""
    if of.cv == 0:
        return max(1, round(of.mean))
    variance = math.log1p(of.cv**2)
    return max(1, round(rng.lognormal(math.log(of.mean) - variance / 2, math.sqrt(variance))))


def reads(shape: str, index: int, last: bool, rng: np.random.Generator) -> tuple[int, ...]:
    """Draw the indices of the steps that the step `index` reads, for a plan of this shape."""
    if shape == "chain":
        return (index - 1,) if index else ()
    if shape == "join":
        return tuple(range(index)) if last else ()
    return tuple(earlier for earlier in range(index) if rng.random() < 0.5)


def pick(shares: Mapping[T, float], rng: np.random.Generator) -> T:
    keys = list(shares)
    return keys[int(rng.choice(len(keys), p=list(shares.values())))]


def sample(inputs: Inputs, rng: np.random.Generator) -> SimulatedPlan:
    mix = inputs.plans
    count, shape = pick(mix.steps, rng), pick(mix.shapes, rng)
    shares = {name: worker.share for name, worker in inputs.workers.items()}
    question_tokens = tokens(mix.question_tokens, rng)
    steps: list[SimulatedStep] = []
    for index in range(count):
        read = reads(shape, index, index == count - 1, rng)
        input_tokens = round(mix.system_tokens) + question_tokens + sum(steps[n].output_tokens for n in read)
        written_tokens, output_tokens = (
            tokens(mix.step_written_tokens, rng),
            tokens(mix.step_output_tokens, rng),
        )
        steps.append(SimulatedStep(pick(shares, rng), read, written_tokens, input_tokens, output_tokens))
    return SimulatedPlan(tuple(steps), question_tokens, bool(rng.random() < mix.second_look.share))


def samples(inputs: Inputs, count: int, seed: int) -> list[SimulatedPlan]:
    """Draw `count` plans of the mix. The same seed gives the same plans."""
    rng = np.random.default_rng(seed)
    return [sample(inputs, rng) for _ in range(count)]
