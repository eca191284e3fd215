"""Strategies that run the same plan for every question, as a fixed workflow does.

Self-reflection is the baseline of arXiv 2512.04388, section 4.3: up to five revisions, each of which sees
every earlier attempt. Mixture-of-Agents is arXiv 2406.04692. Its aggregation prompt is the step's subtask
here, and the system message in the authors' code. The paper's configuration is one layer of all workers and
an aggregator.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from conductor.plan.plan import Plan, Step
from evaluation.questions import Question
from evaluation.spec import Spec, count
from evaluation.strategies.base import (
    EvalContext,
    OneWorkerStrategy,
    Setup,
    StrategyAnswer,
    TrainingSet,
    solo_workers,
)

REFLECT = (
    "Above are your earlier attempts. Check them for mistakes, and answer the question again, in full and "
    "in the form it asks for. If the last attempt is right, repeat its answer."
)
AGGREGATE = (
    "You have been provided with a set of responses from various models to the question. Synthesize them "
    "into a single, high-quality response. Critically evaluate what they say; some of it may be biased or "
    "wrong. Do not simply copy one of them: give a refined, accurate and complete answer, in the form that "
    "the question asks for."
)


@dataclass(slots=True)
class SelfReflection(OneWorkerStrategy):
    """Strategy in which `worker` answers, then revises its answer `rounds` times."""

    rounds: int

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        return await context.ask(question, self_reflection(self.worker, self.rounds))


@dataclass(slots=True)
class MixtureOfAgents(OneWorkerStrategy):
    """Strategy in which `proposers` answer in `layers`, and `worker` aggregates the last."""

    proposers: tuple[str, ...]
    layers: int
    temperature: float

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        return {"aggregator": (await OneWorkerStrategy.prepare(self, training))["worker"]}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        plan = mixture_of_agents(self.proposers, self.worker, self.layers)
        outcome = await context.backend.run(
            question, context.caps, plan, temperature=self.temperature, seed=context.seed
        )
        return StrategyAnswer(outcome)


def self_reflection(worker: str, rounds: int) -> Plan:
    """Return a plan with an answer and its revisions. Each revision reads everything before it."""
    revisions = [Step(worker, REFLECT, tuple(range(index))) for index in range(1, rounds + 1)]
    return Plan((Step(worker, ""), *revisions))


def mixture_of_agents(proposers: Sequence[str], aggregator: str, layers: int) -> Plan:
    """Return a plan with layers of answers, each reading the one before, and a step that aggregates."""
    steps = [Step(worker, "") for worker in proposers]
    for layer in range(1, layers + 1):
        before = tuple(range(len(steps) - len(proposers), len(steps)))
        workers = proposers if layer < layers else [aggregator]
        steps += [Step(worker, AGGREGATE, before) for worker in workers]
    return Plan(tuple(steps))


def make(spec: Spec, setup: Setup) -> Sequence[SelfReflection | MixtureOfAgents]:
    label, first = str(spec), solo_workers(setup.backend)[0]
    worker = setup.worker(spec.detail, label)
    if spec.name == "self_reflection":
        spec.allow_only("rounds")
        rounds = spec.value("rounds", 5, count)
        about = f"an answer and {rounds} revisions of it (arXiv 2512.04388)"
        return [SelfReflection(label, about, worker, first, rounds)]
    spec.allow_only("layers", "proposers", "temperature")
    proposers = setup.workers(spec.options.get("proposers", ""), label)
    layers, temperature = spec.value("layers", 1, count), spec.value("temperature", 0.7, float)
    about = f"Mixture-of-Agents, {layers} × {len(proposers)} and an aggregator (arXiv 2406.04692)"
    return [MixtureOfAgents(label, about, worker, first, proposers, layers, temperature)]
