"""MasRouter-style (arXiv 2502.11133): for each question a way to work together, how many agents, and which model each one is.

Reproduced: the cascade of choices over a MiniLM embedding, its six modes, its reward and its numbers (hidden layer 64, Adam 0.01,
batches of 16, 5 epochs, at most 6 agents, two rounds of debate, a last node by the most frequent model). Not reproduced: its
variational mode head, its library of roles (ours has four, given out in turn), embeddings of models and roles, and code execution
nodes. So a figure of this strategy is a figure of this strategy, and not of the authors' system.
"""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from conductor.plan import Plan, Step
from evaluation.errors import EvaluationError
from evaluation.spec import Named, count
from evaluation.questions import Question
from evaluation.results import Result
from evaluation.routing.cascade import Cascade, Choice
from evaluation.strategies.base import Answer, Lessons, Plain, Scene, Setup, known, taught

BATCH = 16
ROLES = (
    "",
    "Work as a careful analyst: think step by step, then answer in full.",
    "Work as a sceptic: look for the mistake that others would make, then answer in full.",
    "Work as an expert of the question's field, and answer in full.",
)
THINK = "Think step by step, then answer in full, in the form the question asks for."
READ = "Read what the others say, mend what is wrong in it, and answer the question in full."
DECIDE = "Weigh the answers above and give the final one, in the form the question asks for."


def io(workers: Sequence[str]) -> list[Step]:
    """Each answers by itself."""
    return [Step(worker, ROLES[index % len(ROLES)]) for index, worker in enumerate(workers)]


def cot(workers: Sequence[str]) -> list[Step]:
    """Each thinks by itself."""
    return [Step(worker, THINK) for worker in workers]


def chain(workers: Sequence[str]) -> list[Step]:
    """Each reads the one before."""
    return [
        Step(worker, READ if index else THINK, (index - 1,) if index else ())
        for index, worker in enumerate(workers)
    ]


def full(workers: Sequence[str]) -> list[Step]:
    """Each reads all before."""
    return [
        Step(worker, READ if index else THINK, tuple(range(index))) for index, worker in enumerate(workers)
    ]


def debate(workers: Sequence[str]) -> list[Step]:
    """Two rounds; in the second each reads all of the first."""
    everyone = tuple(range(len(workers)))
    return [*io(workers), *(Step(worker, READ, everyone) for worker in workers)]


def reflection(workers: Sequence[str]) -> list[Step]:
    """An answer, and each next one checks all before."""
    review = "Check the answers above for mistakes, and write the answer again with every mistake mended."
    return [
        Step(worker, review if index else THINK, tuple(range(index))) for index, worker in enumerate(workers)
    ]


MODES = {"io": io, "cot": cot, "chain": chain, "full": full, "debate": debate, "reflection": reflection}


@dataclass(slots=True)
class MasRouter(Plain):
    """The cascade, trained on the training questions by running its choices."""

    modes: tuple[str, ...]
    max_agents: int
    epochs: int
    cost_weight: float
    final: str
    cascade: Cascade | None = field(default=None)
    lessons: Lessons | None = field(default=None)

    @property
    def learns(self) -> bool:
        """See `Strategy`."""
        return True

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.lessons = lessons = taught(lessons, self.label)
        x = lessons.embed([question.text for question in lessons.questions])
        families = sorted({question.family for question in lessons.questions})
        tasks = np.array([families.index(question.family) for question in lessons.questions])
        workers = len(lessons.workers)
        self.cascade = Cascade.new(
            x.shape[1], len(families), len(self.modes), self.max_agents, workers, lessons.seed
        )
        rng = np.random.default_rng(lessons.seed)
        rewards: list[float] = []
        for _ in range(self.epochs):
            order = rng.permutation(len(x))
            for start in range(0, len(order), BATCH):
                batch = order[start : start + BATCH]
                choices = [self.cascade.walk(x[at], sample=True) for at in batch]
                tried = await asyncio.gather(
                    *(
                        lessons.tried(lessons.questions[at], self.plan(c))
                        for at, c in zip(batch, choices, strict=True)
                    )
                )
                rewards = [self._reward(result) for result in tried]
                self.cascade.learn(x[batch], tasks[batch], choices, np.array(rewards))
        return {"episodes": self.cascade.seen, "mean reward": round(self.cascade.mean_reward, 4)}

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """See `Strategy`."""
        assert self.lessons is not None and self.cascade is not None, "prepare comes first"
        choice = self.cascade.walk(self.lessons.embed([question.text])[0], sample=False)
        outcome = await scene.asker.run(question, scene.caps, self.plan(choice))
        return Answer(outcome, notes={"mode": self.modes[choice.mode], "agents": len(choice.workers)})

    def plan(self, choice: Choice) -> Plan:
        """What a choice runs: the mode's steps, and where several end side by side one that decides."""
        assert self.lessons is not None, "prepare comes first"
        names = [self.lessons.workers[w] for w in choice.workers]
        steps = MODES[self.modes[choice.mode]](names)
        if len(names) > 1 and self.modes[choice.mode] in ("io", "cot", "debate", "full"):
            last = self.final or Counter(names).most_common(1)[0][0]
            steps = [*steps, Step(last, DECIDE, tuple(range(len(steps) - len(names), len(steps))))]
        return Plan(tuple(steps))

    def _reward(self, result: Result) -> float:
        cost = result.outcome.cost_usd
        return float(result.correct) - self.cost_weight * float(cost or 0)


def make(named: Named, setup: Setup) -> Sequence[MasRouter]:
    """See `Maker`."""
    named.only("modes", "max_agents", "epochs", "cost_weight", "final")
    label = str(named)
    modes = tuple(mode for mode in named.options.get("modes", "+".join(MODES)).split("+") if mode)
    for mode in modes:
        if mode not in MODES:
            raise EvaluationError(f"{label}: no mode is called {mode!r}; there are: {', '.join(MODES)}.")
    if not modes:
        raise EvaluationError(f"{label}: modes= is empty; choose from {', '.join(MODES)}.")
    final = known(named.options["final"], setup.asker, label) if "final" in named.options else ""
    agents, epochs = named.value("max_agents", 6, count), named.value("epochs", 5, count)
    cost_weight = named.value("cost_weight", 100.0, float)
    about = "a cascade in the style of MasRouter (arXiv 2502.11133), not the authors' system"
    return [MasRouter(label, about, modes, agents, epochs, cost_weight, final)]
