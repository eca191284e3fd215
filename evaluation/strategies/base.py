"""Interface of strategies: ways to answer a question with a pool, under caps that are the same for all."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from conductor.plan.plan import Plan, Step
from evaluation import EvaluationError
from evaluation.backends import Caps, EvaluationBackend
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question
from evaluation.results import Result
from evaluation.spec import Spec

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StrategyAnswer:
    """Answer of a strategy to a question.

    Args:
        outcome: the answer and what it took.
        grade: the grade if it is already known, or None to let the question's grader judge the answer.
        notes: data for later strategies and for readers of the results; `free` if no worker was called.
    """

    outcome: RunOutcome
    grade: Grade | None = None
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EvalContext:
    """Resources of a strategy while it answers.

    Args:
        backend: the pool.
        caps: limits for each question.
        seed: seed of sampling and of random choices.
        result: returns another strategy's result by label and question id, or None if there is none.
    """

    backend: EvaluationBackend
    caps: Caps
    seed: int
    result: Callable[[str, str], Result | None]

    async def ask(self, question: Question, plan: Plan, **notes: Any) -> StrategyAnswer:
        """Run `plan` and return its answer with `notes`."""
        return StrategyAnswer(await self.backend.run(question, self.caps, plan), notes=notes)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Training questions, and how each worker did on them. Q questions, W workers.

    Args:
        questions: Q questions, none of which is used in the evaluation.
        workers: W names.
        right_Q_W: whether each worker was right.
        usd_W: mean cost of each worker's answers in US dollars; NaN if unknown.
        embed: turns texts into unit vectors.
        try_plan: runs a plan on a training question. Results are logged, so that nothing is paid for twice.
        seed: seed of all randomness in learning.
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
        """The worker that was right most often. Of several, the cheapest and then the first."""
        rights, costs = self.right_Q_W.sum(axis=0), np.nan_to_num(self.usd_W, nan=0.0)
        return self.workers[min(range(len(self.workers)), key=lambda w: (-rights[w], costs[w]))]

    def embed_questions(self) -> Floats:
        """Return one vector per question."""
        return self.embed([question.text for question in self.questions])


class Strategy(Protocol):
    """Way to answer questions. A module of this package creates it from a `Spec`."""

    @property
    def label(self) -> str:
        """Name in results and reports; unique in an evaluation."""
        ...

    @property
    def about(self) -> str:
        """Description in one sentence, with its source."""
        ...

    @property
    def after(self) -> tuple[str, ...]:
        """Labels of the strategies whose results it reads."""
        ...

    @property
    def learns(self) -> bool:
        """Whether it needs a training set."""
        ...

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """Learn or choose. Called once, before the first question.

        Returns:
            What was learned or chosen, for the report and for the digest of results.
        """
        ...

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        """Answer one question. A failure is an outcome with an error."""
        ...

    async def aclose(self) -> None:
        """Close what the strategy opened."""
        ...


@dataclass(slots=True)
class BaseStrategy:
    """Defaults of most strategies: nothing to learn, to wait for or to close."""

    label: str
    about: str

    @property
    def after(self) -> tuple[str, ...]:
        return ()

    @property
    def learns(self) -> bool:
        return False

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        return {}

    async def aclose(self) -> None:
        pass


@dataclass(slots=True)
class OneWorkerStrategy(BaseStrategy):
    """Strategy with one worker: by default the best on the training set, or else the pool's first."""

    worker: str
    first: str

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        self.worker = self.worker or (training.best if training else self.first)
        return {"worker": self.worker}


class OpenBackend(Protocol):
    """Opens a pool for one strategy."""

    def __call__(self, path: str | None, at: str | None, model: str | None) -> EvaluationBackend:
        """Open a pool.

        Args:
            path: path of its settings, or None for the evaluation's own.
            at: URL of its conductor, or None for the one in the settings.
            model: the conductor's name at that URL.

        Raises:
            EvaluationError: this process cannot call the pool.
        """
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """Inputs for creating strategies.

    Args:
        backend: the pool.
        labels: labels of the strategies created so far, for those that read others' results.
        open_backend: opens another pool.
    """

    backend: EvaluationBackend
    labels: Sequence[str]
    open_backend: OpenBackend

    def worker(self, name: str, label: str) -> str:
        """Return `name`, which may be empty.

        Raises:
            EvaluationError: the pool has no such worker.
        """
        if name and name not in self.backend.workers:
            has = ", ".join(self.backend.workers)
            raise EvaluationError(f"{label}: unknown worker {name!r}; the pool has: {has}.")
        return name

    def workers(self, names: str, label: str) -> tuple[str, ...]:
        """Return the workers in `a+b+c`, or every solo worker if it is empty.

        Raises:
            EvaluationError: the pool has no such worker.
        """
        chosen = tuple(self.worker(name, label) for name in names.split("+") if name)
        return chosen or solo_workers(self.backend)


class StrategyFactory(Protocol):
    """Signature of `make` in each module of this package."""

    def __call__(self, spec: Spec, setup: Setup) -> Sequence[Strategy]:
        """Create the strategies that `spec` names.

        Raises:
            EvaluationError: an option or worker is unknown, or something that a strategy needs is missing.
        """
        ...


def solo_workers(backend: EvaluationBackend) -> tuple[str, ...]:
    """Return the workers that can answer alone: all except voters and other programs that read steps."""
    return tuple(name for name in backend.workers if backend.provenance.get(name) != "program")


def solo_plan(worker: str) -> Plan:
    """Return a plan in which `worker` alone answers the question as it is."""
    return Plan((Step(worker, ""),))


def require_training(training: TrainingSet | None, label: str) -> TrainingSet:
    """Return `training`.

    Raises:
        EvaluationError: `training` is None.
    """
    if training is None:
        raise EvaluationError(
            f"{label} needs training questions. Name some with --train, such as "
            "--train 'recorded:PATH?part=train'."
        )
    return training
