"""MasRouter-style strategy (arXiv 2502.11133): chooses how agents collaborate, how many, and which models.

It chooses for each question. Reproduced: the cascade of choices over a MiniLM embedding, its six modes, its
reward and its hyperparameters (hidden layer 64, Adam at 0.01, batches of 16, 5 epochs, at most 6 agents, two
rounds of debate, a last node by the most frequent model). Not reproduced: its variational mode head, its
library of roles (ours has four, assigned in turn), embeddings of models and roles, and code execution nodes.
The figures of this strategy are therefore not those of the authors' system.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from conductor.plan.plan import Plan, Step
from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.results import Result
from evaluation.routing.cascade import Cascade, TeamChoice
from evaluation.spec import Spec, count
from evaluation.strategies.base import EvalContext, Setup, StrategyAnswer, TrainingSet, require_training
from evaluation.strategies.routers import LearningStrategy

BATCH = 16
ROLES = (
    "",
    "Work as a careful analyst: think step by step, then answer in full.",
    "Work as a sceptic: look for the mistake that others would make, then answer in full.",
    "Work as an expert of the question's field, and answer in full.",
)
THINK = "Think step by step, then answer in full, in the form the question asks for."
READ = "Read what the others say, correct their mistakes, and answer the question in full."
REVIEW = "Check the answers above for mistakes, and write the answer again without these mistakes."
DECIDE = "Weigh the answers above and give the final one, in the form the question asks for."


def io(workers: Sequence[str]) -> list[Step]:
    """Return steps in which each worker answers alone."""
    return [Step(worker, ROLES[index % len(ROLES)]) for index, worker in enumerate(workers)]


def cot(workers: Sequence[str]) -> list[Step]:
    """Return steps in which each worker thinks step by step, alone."""
    return [Step(worker, THINK) for worker in workers]


def chain(workers: Sequence[str]) -> list[Step]:
    """Return steps, each of which reads the one before it."""
    rest = [Step(worker, READ, (index,)) for index, worker in enumerate(workers[1:])]
    return [Step(workers[0], THINK), *rest]


def full(workers: Sequence[str], subtask: str = READ) -> list[Step]:
    """Return steps, each of which reads all steps before it."""
    rest = [Step(worker, subtask, tuple(range(index))) for index, worker in enumerate(workers[1:], 1)]
    return [Step(workers[0], THINK), *rest]


def debate(workers: Sequence[str]) -> list[Step]:
    """Return two rounds of steps; in the second round each reads all of the first."""
    everyone = tuple(range(len(workers)))
    return [*io(workers), *(Step(worker, READ, everyone) for worker in workers)]


def reflection(workers: Sequence[str]) -> list[Step]:
    """Return a step that answers, and steps that check the answer. Each reads all steps before it."""
    return full(workers, REVIEW)


MODES = {"io": io, "cot": cot, "chain": chain, "full": full, "debate": debate, "reflection": reflection}


@dataclass(slots=True)
class MasRouter(LearningStrategy):
    """Strategy that uses the cascade. It is trained by running its choices on the training questions."""

    modes: tuple[str, ...]
    max_agents: int
    epochs: int
    cost_weight: float
    final: str
    cascade: Cascade | None = None

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        self.training = training = require_training(training, self.label)
        x, questions = training.embed_questions(), training.questions
        families = sorted({question.family for question in questions})
        tasks = np.array([families.index(question.family) for question in questions])
        self.cascade = Cascade(
            x.shape[1], len(families), len(self.modes), self.max_agents, len(training.workers), training.seed
        )
        rng = np.random.default_rng(training.seed)
        for _ in range(self.epochs):
            order: list[int] = rng.permutation(len(x)).tolist()
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                choices = [self.cascade.walk(x[at], sample=True) for at in batch]
                tries = (
                    training.try_plan(questions[at], self.plan(c))
                    for at, c in zip(batch, choices, strict=True)
                )
                rewards = [self._reward(result) for result in await asyncio.gather(*tries)]
                self.cascade.learn(x[batch], tasks[batch], choices, np.array(rewards))
        return {"episodes": self.cascade.episodes, "mean reward": round(float(self.cascade.mean_reward), 4)}

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        assert self.cascade is not None, "prepare comes first"
        choice = self.cascade.walk(self.embed(question)[0], sample=False)
        mode, agents = self.modes[choice.mode], len(choice.workers)
        return await context.ask(question, self.plan(choice), mode=mode, agents=agents)

    def plan(self, choice: TeamChoice) -> Plan:
        """Return the plan of a mode. With several agents, io, cot, debate and full end with a deciding step."""
        names = [self.training.workers[w] for w in choice.workers]
        steps = MODES[self.modes[choice.mode]](names)
        if len(names) > 1 and self.modes[choice.mode] in ("io", "cot", "debate", "full"):
            last = self.final or Counter(names).most_common(1)[0][0]
            steps = [*steps, Step(last, DECIDE, tuple(range(len(steps) - len(names), len(steps))))]
        return Plan(tuple(steps))

    def _reward(self, result: Result) -> float:
        return float(result.correct) - self.cost_weight * float(result.outcome.cost_usd or 0)


def make(spec: Spec, setup: Setup) -> Sequence[MasRouter]:
    spec.allow_only("modes", "max_agents", "epochs", "cost_weight", "final")
    label = str(spec)
    modes = tuple(mode for mode in spec.options.get("modes", "+".join(MODES)).split("+") if mode)
    for mode in modes:
        if mode not in MODES:
            raise EvaluationError(f"{label}: unknown mode {mode!r}. Choose from: {', '.join(MODES)}.")
    if not modes:
        raise EvaluationError(f"{label}: modes= is empty. Choose at least one of: {', '.join(MODES)}.")
    final = setup.worker(spec.options.get("final", ""), label)
    agents, epochs = spec.value("max_agents", 6, count), spec.value("epochs", 5, count)
    cost_weight = spec.value("cost_weight", 100.0, float)
    about = "a cascade in the style of MasRouter (arXiv 2502.11133), not the authors' system"
    return [MasRouter(label, about, modes, agents, epochs, cost_weight, final)]
