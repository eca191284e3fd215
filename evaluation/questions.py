"""Questions and the grades of their answers. Independent of sources and graders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer a program can check.

    Args:
        id: unique in its source and stable, so that an interrupted evaluation can resume, such as
            `skills/held_out/7/12`.
        text: the user's message, including the answer format that the grader needs.
        expected: the reference answer; never sent to a worker.
        grader: a key of `evaluation.graders.GRADERS`.
        source: the question set, such as `skills`, `recorded` or `reasoning_gym`.
        family: its kind within the source; reports show figures per family.
        facts: what the grader or a replaying worker needs in addition to the text.
        earlier: the turns before `text`, alternating between user and assistant.
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
    """Verdict on an answer.

    Args:
        correct: whether the answer is right; there is no partial credit.
        extracted: the part of the text that was judged, or None if no answer was found.
        why: an explanation if the answer is wrong.
    """

    correct: bool
    extracted: str | None
    why: str = ""
