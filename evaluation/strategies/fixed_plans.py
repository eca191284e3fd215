"""Strategies that are a plan, the same for every question: the engine runs them as it runs a fixed workflow.

Self-reflection: the paper's baseline (arXiv 2512.04388, section 4.3), up to five revisions with every earlier attempt in sight.
Mixture-of-Agents: arXiv 2406.04692; its aggregator's words stand in the step's subtask, where its own code has them in the system
message. The paper's configuration is one layer of all workers and an aggregator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.plan import Plan, Step
from evaluation.backends.in_process import Sampling
from evaluation.spec import Named, count
from evaluation.questions import Question
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup, known, models_of

REFLECT = (
    "Above are your earlier attempts. Check them for mistakes, and answer the question again, in full and in the form it asks "
    "for. If the last attempt is right, repeat its answer."
)
AGGREGATE = (
    "You have been provided with a set of responses from various models to the question. Synthesize them into a single, "
    "high-quality response. Critically evaluate what they say; some of it may be biased or wrong. Do not simply copy one of them: "
    "give a refined, accurate and complete answer, in the form that the question asks for."
)


@dataclass(slots=True)
class SelfReflection(Plain):
    """`worker` answers, then revises its answer `rounds` times."""

    worker: str
    first: str
    rounds: int

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.worker = self.worker or (lessons.best if lessons else self.first)
        return {"worker": self.worker}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        return Answer(await scene.asker.run(question, scene.caps, self_reflection(self.worker, self.rounds)))


@dataclass(slots=True)
class MixtureOfAgents(Plain):
    """`layers` of `proposers`, then `aggregator`."""

    proposers: tuple[str, ...]
    aggregator: str
    first: str
    layers: int
    temperature: float

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.aggregator = self.aggregator or (lessons.best if lessons else self.first)
        return {"aggregator": self.aggregator}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        plan = mixture_of_agents(self.proposers, self.aggregator, self.layers)
        return Answer(
            await scene.asker.run(question, scene.caps, plan, Sampling(self.temperature, scene.seed))
        )


def self_reflection(worker: str, rounds: int) -> Plan:
    """An answer and its revisions, each of which sees all before it."""
    revisions = [Step(worker, REFLECT, tuple(range(index))) for index in range(1, rounds + 1)]
    return Plan((Step(worker, ""), *revisions))


def mixture_of_agents(proposers: Sequence[str], aggregator: str, layers: int) -> Plan:
    """Layers of answers, each of which sees the layer before it, and one made of the last layer."""
    steps = [Step(worker, "") for worker in proposers]
    before = tuple(range(len(proposers)))
    for _ in range(layers - 1):
        steps += [Step(worker, AGGREGATE, before) for worker in proposers]
        before = tuple(range(len(steps) - len(proposers), len(steps)))
    return Plan((*steps, Step(aggregator, AGGREGATE, before)))


def make(named: Named, setup: Setup) -> Sequence[SelfReflection | MixtureOfAgents]:
    """See `Maker`."""
    label, first = str(named), models_of(setup.asker)[0]
    worker = known(named.detail, setup.asker, label) if named.detail else ""
    if named.name == "self_reflection":
        named.only("rounds")
        rounds = named.value("rounds", 5, count)
        return [
            SelfReflection(
                label, f"an answer and {rounds} revisions of it (arXiv 2512.04388)", worker, first, rounds
            )
        ]
    named.only("layers", "proposers", "temperature")
    chosen = [
        known(each, setup.asker, label) for each in named.options.get("proposers", "").split("+") if each
    ]
    layers, temperature = named.value("layers", 1, count), named.value("temperature", 0.7, float)
    proposers = tuple(chosen) or models_of(setup.asker)
    about = f"Mixture-of-Agents, {layers} × {len(proposers)} and an aggregator (arXiv 2406.04692)"
    return [MixtureOfAgents(label, about, proposers, worker, first, layers, temperature)]
