"""Plans, drawn from a mix: how many steps, who reads whom, how many tokens. Knows shapes and sizes, not time."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from capacity.inputs import Inputs, Tokens

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan.

    Args:
        worker: in the pool.
        reads: earlier steps.
        written_tokens: that the conductor writes for it.
        input_tokens: of its prompt, what it reads included.
        output_tokens: of its answer.
    """

    worker: str
    reads: tuple[int, ...]
    written_tokens: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """Steps in the order in which they are written; the last one's output is the answer."""

    steps: tuple[Step, ...]
    question_tokens: int
    second_look: bool = False
    """Whether the conductor reads the outcome before it is shown."""

    @property
    def looked_at_tokens(self) -> int:
        """That it reads then, beside its prompt."""
        return self.question_tokens + sum(self.steps[index].output_tokens for index in self.needed)

    @property
    def needed(self) -> frozenset[int]:
        """The steps that the last one can reach; all others are dead."""
        found = {len(self.steps) - 1}
        for index in range(len(self.steps) - 1, -1, -1):
            if index in found:
                found.update(self.steps[index].reads)
        return frozenset(found)


def tokens(of: Tokens, rng: np.random.Generator) -> int:
    """A lognormal draw, at least 1."""
    if of.cv == 0:
        return max(1, round(of.mean))
    variance = float(np.log1p(of.cv**2))
    return max(1, round(rng.lognormal(np.log(of.mean) - variance / 2, variance**0.5)))


def reads(shape: str, index: int, last: bool, rng: np.random.Generator) -> tuple[int, ...]:
    """What step `index` reads."""
    if shape == "chain":
        return (index - 1,) if index else ()
    if shape == "join":
        return tuple(range(index)) if last else ()
    return tuple(earlier for earlier in range(index) if rng.random() < 0.5)


def pick(shares: Mapping[T, float], rng: np.random.Generator) -> T:
    """A key, as often as its share says."""
    keys = list(shares)
    return keys[int(rng.choice(len(keys), p=list(shares.values())))]


def sample(inputs: Inputs, rng: np.random.Generator) -> Plan:
    """One plan of the mix."""
    mix = inputs.plans
    count, shape = pick(mix.steps, rng), pick(mix.shapes, rng)
    shares = {name: worker.share for name, worker in inputs.workers.items()}
    question_tokens = tokens(mix.question_tokens, rng)
    steps: list[Step] = []
    for index in range(count):
        read = reads(shape, index, index == count - 1, rng)
        seen = (
            round(mix.system_tokens) + question_tokens + sum(steps[earlier].output_tokens for earlier in read)
        )
        written, output = tokens(mix.step_written_tokens, rng), tokens(mix.step_output_tokens, rng)
        steps.append(Step(pick(shares, rng), read, written, seen, output))
    return Plan(tuple(steps), question_tokens, bool(rng.random() < mix.second_look.share))


def samples(inputs: Inputs, count: int, seed: int) -> list[Plan]:
    """`count` plans; the same seed gives the same ones."""
    rng = np.random.default_rng(seed)
    return [sample(inputs, rng) for _ in range(count)]
