"""Questions and the grades of their answers. Independent of sources and graders."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Question:
    """A question whose answer a program can check.

    Args:
        id: the id, such as `skills/held_out/7/12`. It is unique in its source and never changes, so that an
            interrupted evaluation can resume.
        text: the user's message, including the answer format that the grader needs.
        expected: the reference answer. It is never sent to a worker.
        source: the question set, such as `skills`, `recorded` or `reasoning_gym`.
        facts: the data that the grader or a replaying worker needs in addition to the text.
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
    """Verdict on an answer without partial credit. `extracted` is the judged part, or None."""

    correct: bool
    extracted: str | None
    why: str = ""
