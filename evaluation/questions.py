"""What is asked, and how its answer is checked. Knows no source and no grader by itself."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """One question whose answer can be checked by a program.

    Args:
        id: unique in its source and the same every time, so that a stopped evaluation can go on: `skills/7/12`.
        text: what the user asks, with the form of the answer that the grader wants.
        expected: the reference answer; never shown to anybody who answers.
        grader: a name in `evaluation.graders.GRADERS`.
        source: where it is from: `skills`, `recorded`, `reasoning_gym` ...
        family: its sort within the source, for figures by family.
        facts: what the grader or a replaying worker needs beyond the text.
    """

    id: str
    text: str
    expected: str
    grader: str
    source: str
    family: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Grade:
    """What became of an answer.

    Args:
        correct: whether it counts as right; nothing is half right.
        extracted: the part of the text that was judged; None where the text has no answer in it.
        why: in words, where it is not right.
    """

    correct: bool
    extracted: str | None
    why: str = ""
