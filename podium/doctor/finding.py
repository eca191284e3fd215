"""Inputs and results of checks.

This module imports only the standard library, because the doctor must also run when packages are missing.
"""

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
    """Result of a check.

    Args:
        level: `ok`, `warning` (it works, but not as well as it could) or `wrong` (something does not work).
        said: the message. If `field` is set, the message is the rest of a sentence that begins with the field.
        remedy: advice on how to solve the problem, or "".
        file: file that contains the problem, or "".
        field: field of that file that contains the problem, or "".
    """

    level: Level
    said: str
    remedy: str = ""
    file: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Settings file, port and environment with which a server will be started."""

    path: Path
    port: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServerCase(ServerPlace):
    """`ServerPlace` whose settings file has been loaded."""

    settings: Settings


def ok(message: str) -> Finding:
    return Finding("ok", message)


def warning(message: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Create a finding of level `warning`: the server works, but not as well as it could."""
    return Finding("warning", message, remedy, file, field)


def wrong(message: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Create a finding of level `wrong`: something does not work."""
    return Finding("wrong", message, remedy, file, field)


def worst(findings: Sequence[Finding]) -> Finding:
    """Combine the findings of the worst level into one. If all are ok, return the first."""
    for level in ("wrong", "warning"):
        if grave := [each for each in findings if each.level == level]:
            remedies = dict.fromkeys(each.remedy for each in grave)
            return Finding(level, " ".join(each.said for each in grave), " ".join(remedies))
    return findings[0]
