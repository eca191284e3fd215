"""What a check takes and what it returns. Standard library only, because the doctor also runs where packages are missing."""

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
    """The result of a check.

    Args:
        level: `warning`: it works, though not as well as it could; `wrong`: something does not work.
        said: what is so, in a sentence. If `field` is set, the sentence begins with it.
        remedy: what to do; empty if there is nothing to do.
        file: the file that is at fault; empty if none is.
        field: the field of that file.
    """

    level: Level
    said: str
    remedy: str = ""
    file: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ServerPlace:
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
class ServerCase(ServerPlace):
    """Where a server is to be started, and what it is to serve.

    Args:
        settings: read.
    """

    settings: Settings


def ok(said: str) -> Finding:
    """Report that all is well."""
    return Finding("ok", said)


def warning(said: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Report that something works, though not as well as it could."""
    return Finding("warning", said, remedy, file, field)


def wrong(said: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Report that something does not work."""
    return Finding("wrong", said, remedy, file, field)


def worst(findings: Sequence[Finding]) -> Finding:
    """Join the findings of the worst level into one. Return the first if all are well."""
    for level in ("wrong", "warning"):
        if grave := [each for each in findings if each.level == level]:
            remedies = dict.fromkeys(each.remedy for each in grave)
            return Finding(level, " ".join(each.said for each in grave), " ".join(remedies))
    return findings[0]
