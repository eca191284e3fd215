"""What a strategy is: a way to answer a question with a pool, under caps that are the same for all of them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from conductor.plan import Plan, Step
from evaluation.backends.in_process import Asker, Caps
from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.outcome import Outcome
from evaluation.questions import Grade, Question
from evaluation.results import Result

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a strategy gives for a question.

    Args:
        outcome: answer and price.
        grade: where it is known already; None: the question's grader judges the answer.
        notes: for strategies that come after, and for whoever reads the results; `free` where nobody was called for it.
    """

    outcome: Outcome
    grade: Grade | None = None
    notes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Scene:
    """What a strategy has at hand while it answers.

    Args:
        asker: the pool.
        caps: of each question.
        seed: of sampling and of choosing by lot.
        result: the result of another strategy for a question, by label and question id; None where there is none.
    """

    asker: Asker
    caps: Caps
    seed: int
    result: Callable[[str, str], Result | None]


@dataclass(frozen=True, slots=True)
class Lessons:
    """What can be learned from: training questions, and how each worker did on them. Q questions, W workers.

    Args:
        questions: Q of them; none is asked in the evaluation.
        workers: W names.
        right_Q_W: who was right.
        usd_W: mean cost of a worker's answer; NaN where it is unknown.
        embed: texts to unit vectors.
        tried: run a plan on a training question; kept, so that nothing is paid twice.
        seed: of everything that is drawn while learning.
    """

    questions: Sequence[Question]
    workers: tuple[str, ...]
    right_Q_W: Bools
    usd_W: Floats
    embed: Callable[[Sequence[str]], Floats]
    tried: Callable[[Question, Plan], Awaitable[Result]]
    seed: int

    @property
    def best(self) -> str:
        """The worker that was right most often; of several the cheaper one, then the first."""
        rights = self.right_Q_W.sum(axis=0)
        return self.workers[
            min(range(len(self.workers)), key=lambda w: (-rights[w], np.nan_to_num(self.usd_W[w], nan=0.0)))
        ]


class Strategy(Protocol):
    """One way to answer. Made by a file of this package from a name on the command line."""

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
        """Labels of strategies whose results it reads."""
        ...

    @property
    def learns(self) -> bool:
        """It cannot answer without lessons."""
        ...

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """Learn, or choose; called once before the first question.

        Returns:
            What was learned or chosen, for the report and for telling results apart.
        """
        ...

    async def answer(self, question: Question, scene: Scene) -> Answer:
        """Answer one question. What fails is an outcome with an error."""
        ...

    async def aclose(self) -> None:
        """Close what it opened for itself."""
        ...


@dataclass(slots=True)
class Plain:
    """What most strategies have in common: a label, nothing to learn, nothing to wait for, nothing to close."""

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

    async def prepare(self, lessons: Lessons | None) -> Mapping[str, Any]:
        """See `Strategy`."""
        return {}

    async def aclose(self) -> None:
        """See `Strategy`."""


class OpenAsker(Protocol):
    """Opens a pool for one strategy."""

    def __call__(self, path: str | None, at: str | None, model: str | None) -> Asker:
        """A pool.

        Args:
            path: of its settings; None: the evaluation's own.
            at: where its conductor answers; None: as the settings say.
            model: what it is called there.

        Raises:
            EvaluationError: it cannot be asked from this process.
        """
        ...


@dataclass(frozen=True, slots=True)
class Setup:
    """What strategies are made from.

    Args:
        asker: the pool.
        labels: of the strategies made so far, for those that read others' results.
        open_asker: another pool.
    """

    asker: Asker
    labels: Sequence[str]
    open_asker: "OpenAsker"


class Maker(Protocol):
    """What each file of this package offers as `make`."""

    def __call__(self, named: Named, setup: Setup) -> Sequence[Strategy]:
        """The strategies that `named` stands for.

        Raises:
            EvaluationError: an option or worker is unknown, or something it needs is not there.
        """
        ...


def models_of(asker: Asker) -> tuple[str, ...]:
    """The workers that answer by themselves: all but voters and other programs that read steps."""
    return tuple(name for name in asker.workers if asker.provenance.get(name) != "program")


def known(worker: str, asker: Asker, where: str) -> str:
    """`worker`, if the pool has it.

    Raises:
        EvaluationError: it has not.
    """
    if worker not in asker.workers:
        raise EvaluationError(
            f"{where}: no worker is called {worker!r}; the pool has: {', '.join(asker.workers)}."
        )
    return worker


def taught(lessons: Lessons | None, label: str) -> Lessons:
    """`lessons`, where there are any.

    Raises:
        EvaluationError: there are none.
    """
    if lessons is None:
        raise EvaluationError(
            f"{label} learns from questions whose answers are known. Name some with --train, such as "
            "--train 'recorded:PATH?part=train'."
        )
    return lessons


def by_itself(worker: str) -> Plan:
    """One worker is asked the question as it stands."""
    return Plan((Step(worker, ""),))
