"""What a check looks at and what it says. Standard library only: the doctor starts where packages are missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from serving.settings.settings import Settings

Level = Literal["ok", "warning", "wrong"]


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check has found.

    Args:
        level: `warning`: it works, though not as well as it could; `wrong`: something does not work.
        said: what is so, in a sentence.
        remedy: what to do; empty where nothing is to be done.
    """

    level: Level
    said: str
    remedy: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server is to be started.

    Args:
        path: of its settings.
        port: that it is to answer at.
        environment: that it is to be started in.
    """

    path: Path
    port: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case(Place):
    """Where a server is to be started, and what it is to serve.

    Args:
        settings: read.
    """

    settings: Settings


def ok(said: str) -> Finding:
    """Nothing is to be done."""
    return Finding("ok", said)


def warning(said: str, remedy: str) -> Finding:
    """It works, though not as well as it could."""
    return Finding("warning", said, remedy)


def wrong(said: str, remedy: str) -> Finding:
    """Something does not work."""
    return Finding("wrong", said, remedy)


def worst(findings: Sequence[Finding]) -> Finding:
    """Of `findings` about one thing the gravest, with what all of that level say; the first where all are well."""
    for level in ("wrong", "warning"):
        if grave := [each for each in findings if each.level == level]:
            remedies = dict.fromkeys(each.remedy for each in grave)
            return Finding(level, " ".join(each.said for each in grave), " ".join(remedies))
    return findings[0]
