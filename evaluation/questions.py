"""What is asked, and how its answer is checked. Knows no source and no grader."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """One question whose answer can be checked by a program.

    Args:
        id: unique in its source and stable, so that a stopped evaluation can continue: `skills/7/12`.
        text: the user's message, with the form of answer that the grader needs.
        expected: the reference answer; never shown to a worker.
        grader: a name in `evaluation.graders.GRADERS`.
        source: where it is from: `skills`, `recorded`, `reasoning_gym` ...
        family: its kind within the source, for figures by family.
        facts: what the grader or a replaying worker needs beyond the text.
        earlier: the turns before `text`, the user's and the assistant's in turn.
    """

    id: str
    text: str
    expected: str
    grader: str
    source: str
    family: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    earlier: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Grade:
    """The verdict on an answer.

    Args:
        correct: right or not; there is no partial credit.
        extracted: the part of the text that was judged; None where it has no answer.
        why: in words, where it is not right.
    """

    correct: bool
    extracted: str | None
    why: str = ""
