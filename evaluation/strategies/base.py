"""Interface of strategies. A strategy answers a question with a pool of workers, within limits that are the
same for all.
"""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from conductor.plan.plan import Plan, Step
from evaluation import EvaluationError
from evaluation.backends import Caps, EvaluationBackend
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question
from evaluation.results import Result

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StrategyAnswer:
    """Answer of a strategy to a question.

    Args:
        grade: the grade if it is already known, or None to let the question's grader judge the answer.
        notes: data for strategies that run later, and for readers of the results. It contains `free` if no
            worker was called.
    """

    outcome: RunOutcome
    grade: Grade | None = None
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EvalContext:
    """Resources that a strategy uses to answer.

    Args:
        seed: the seed of sampling and of random choices.
        result: a function that returns another strategy's result by label and question id, or None if there
            is none.
    """

    backend: EvaluationBackend
    caps: Caps
    seed: int
    result: Callable[[str, str], Result | None]

    async def ask(self, question: Question, plan: Plan, **notes: Any) -> StrategyAnswer:
        return StrategyAnswer(await self.backend.run(question, self.caps, plan), notes=notes)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Training questions, and the results of each worker on them. Q questions, W workers.

    Args:
        right_Q_W: whether each worker was right on each question.
        embed: a function that turns texts into unit vectors.
        try_plan: a function that runs a plan on a training question. Its results are logged, so that nothing
            is paid for twice.
    """

    questions: Sequence[Question]
    workers: tuple[str, ...]
    right_Q_W: Bools
    usd_W: Floats
    embed: Callable[[Sequence[str]], Floats]
    try_plan: Callable[[Question, Plan], Awaitable[Result]]
    seed: int

    @property
    def best(self) -> str:
        """Name of the worker that was right most often. Of equals, it is the first of the cheapest."""
        rights, costs = self.right_Q_W.sum(axis=0), np.nan_to_num(self.usd_W, nan=0.0)
        return self.workers[min(range(len(self.workers)), key=lambda w: (-rights[w], costs[w]))]

    def embed_questions(self) -> Floats:
        return self.embed([question.text for question in self.questions])


@dataclass(slots=True)
class Strategy(ABC):
    """Base of strategies. A module of this package creates them from a `Spec`. `about` names their source."""

    label: str
    about: str

    @property
    def after(self) -> tuple[str, ...]:
        """Labels of the strategies whose results this strategy reads."""
        return ()

    @property
    def learns(self) -> bool:
        return False

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """Learn or choose parameters before the first question. Return them for report and digest."""
        return {}

    @abstractmethod
    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        """Answer one question. A failure is not raised, but returned as an outcome with an error."""

    async def aclose(self) -> None:
        return


@dataclass(slots=True)
class OneWorkerStrategy(Strategy):
    """Strategy with one worker. The default is the best on the training set, or the pool's first."""

    worker: str
    first: str

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        self.worker = self.worker or (training.best if training else self.first)
        return {"worker": self.worker}


OpenBackend = Callable[[str | None, str | None, str | None], EvaluationBackend]
"""Function that opens another pool from a settings path, a conductor's URL and its name there. None keeps
that of the evaluation. It raises `EvaluationError` if this process cannot call the pool.
"""


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs for creating strategies. `labels` are those created so far."""

    backend: EvaluationBackend
    labels: Sequence[str]
    open_backend: OpenBackend

    def worker(self, name: str, label: str) -> str:
        """Return `name`, which is empty or a worker of the pool. Raise EvaluationError otherwise."""
        if name and name not in self.backend.workers:
            has = ", ".join(self.backend.workers)
            raise EvaluationError(f"{label}: unknown worker {name!r}. Choose from: {has}.")
        return name

    def workers(self, names: str, label: str) -> tuple[str, ...]:
        """Return the workers in `names`, such as `a+b+c`, or all that can answer alone if it is empty."""
        chosen = tuple(self.worker(name, label) for name in names.split("+") if name)
        return chosen or solo_workers(self.backend)


def solo_workers(backend: EvaluationBackend) -> tuple[str, ...]:
    """Return the workers that can answer alone. Voters and other programs that read steps cannot."""
    return tuple(name for name in backend.workers if backend.provenance.get(name) != "program")


def solo_plan(worker: str) -> Plan:
    """Return a plan in which `worker` alone answers the question as it is."""
    return Plan((Step(worker, ""),))


def require_training(training: TrainingSet | None, label: str) -> TrainingSet:
    """Return `training`. Raise EvaluationError if it is None."""
    if training is None:
        raise EvaluationError(
            f"{label} needs training questions. Set --train, for example --train 'recorded:PATH?part=train'."
        )
    return training
