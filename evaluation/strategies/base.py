"""What a strategy is: a way to answer a question with a pool, under caps that are the same for all."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from conductor.plan.plan import Plan, Step
from evaluation.backends import Caps, EvaluationBackend
from evaluation.errors import EvaluationError
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade, Question
from evaluation.results import Result
from evaluation.spec import Spec

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class StrategyAnswer:
    """What a strategy returns for a question.

    Args:
        outcome: answer and price.
        grade: where it is known already; None: the question's grader judges the answer.
        notes: for later strategies and for readers of the results; `free` where nobody was called for it.
    """

    outcome: RunOutcome
    grade: Grade | None = None
    notes: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class EvalContext:
    """What a strategy may use while it answers.

    Args:
        backend: the pool.
        caps: of each question.
        seed: of sampling and of random choices.
        result: another strategy's result for a question, by label and question id; None where there is none.
    """

    backend: EvaluationBackend
    caps: Caps
    seed: int
    result: Callable[[str, str], Result | None]

    async def ask(self, question: Question, plan: Plan, **notes: Any) -> StrategyAnswer:
        """Run `plan`."""
        return StrategyAnswer(await self.backend.run(question, self.caps, plan), notes=notes)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Training questions, and how each worker did on them. Q questions, W workers.

    Args:
        questions: Q of them; none is asked in the evaluation.
        workers: W names.
        right_Q_W: who was right.
        usd_W: mean cost of a worker's answer; NaN where unknown.
        embed: texts to unit vectors.
        try_plan: runs a plan on a training question; results are kept, so that nothing is paid for twice.
        seed: of all randomness in learning.
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
        """The worker that was right most often; of several the cheaper one, then the first."""
        rights, costs = self.right_Q_W.sum(axis=0), np.nan_to_num(self.usd_W, nan=0.0)
        return self.workers[min(range(len(self.workers)), key=lambda w: (-rights[w], costs[w]))]

    def embed_questions(self) -> Floats:
        """One row a question."""
        return self.embed([question.text for question in self.questions])


class Strategy(Protocol):
    """One way to answer. A module of this package makes it from a `Spec`."""

    @property
    def label(self) -> str:
        """Its name in results and reports; unique in an evaluation."""
        ...

    @property
    def about(self) -> str:
        """In a sentence, with its source."""
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
        """Learn, or choose; called once, before the first question.

        Returns:
            What was learned or chosen, for the report and for telling results apart.
        """
        ...

    async def answer(self, question: Question, context: EvalContext) -> StrategyAnswer:
        """Answer one question. A failure is an outcome with an error."""
        ...

    async def aclose(self) -> None:
        """Close what it opened for itself."""
        ...


@dataclass(slots=True)
class BaseStrategy:
    """What most strategies share: a label; nothing to learn, to wait for or to close."""

    label: str
    about: str

    @property
    def after(self) -> tuple[str, ...]:
        """See `Strategy`."""
        return ()

    @property
    def learns(self) -> bool:
        """See `Strategy`."""
        return False

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        return {}

    async def aclose(self) -> None:
        """See `Strategy`."""


@dataclass(slots=True)
class OneWorkerStrategy(BaseStrategy):
    """Uses one worker; an empty name means the best on the training set, or else the pool's first."""

    worker: str
    first: str

    async def prepare(self, training: TrainingSet | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        self.worker = self.worker or (training.best if training else self.first)
        return {"worker": self.worker}


class OpenBackend(Protocol):
    """Opens a pool for one strategy."""

    def __call__(self, path: str | None, at: str | None, model: str | None) -> EvaluationBackend:
        """Open a pool.

        Args:
            path: of its settings; None: the evaluation's own.
            at: URL of its conductor; None: as the settings say.
            model: the conductor's name there.

        Raises:
            EvaluationError: it cannot be asked from this process.
        """
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What strategies are made from.

    Args:
        backend: the pool.
        labels: of the strategies made so far, for those that read others' results.
        open_backend: opens another pool.
    """

    backend: EvaluationBackend
    labels: Sequence[str]
    open_backend: OpenBackend

    def worker(self, name: str, label: str) -> str:
        """`name`, which may be empty.

        Raises:
            EvaluationError: the pool has no such worker.
        """
        if name and name not in self.backend.workers:
            has = ", ".join(self.backend.workers)
            raise EvaluationError(f"{label}: no worker is called {name!r}; the pool has: {has}.")
        return name

    def workers(self, names: str, label: str) -> tuple[str, ...]:
        """The workers in `a+b+c`; every solo worker where it is empty.

        Raises:
            EvaluationError: the pool lacks one.
        """
        chosen = tuple(self.worker(name, label) for name in names.split("+") if name)
        return chosen or solo_workers(self.backend)


class StrategyFactory(Protocol):
    """What each module of this package offers as `make`."""

    def __call__(self, spec: Spec, setup: Setup) -> Sequence[Strategy]:
        """Make the strategies that `spec` names.

        Raises:
            EvaluationError: an option or worker is unknown, or something it needs is missing.
        """
        ...


def solo_workers(backend: EvaluationBackend) -> tuple[str, ...]:
    """The workers that can answer alone: all but voters and other programs that read steps."""
    return tuple(name for name in backend.workers if backend.provenance.get(name) != "program")


def solo_plan(worker: str) -> Plan:
    """`worker` alone, asked the question as it is."""
    return Plan((Step(worker, ""),))


def require_training(training: TrainingSet | None, label: str) -> TrainingSet:
    """`training`, where there is one.

    Raises:
        EvaluationError: there is none.
    """
    if training is None:
        raise EvaluationError(
            f"{label} learns from questions whose answers are known. Name some with --train, such as "
            "--train 'recorded:PATH?part=train'."
        )
    return training
