"""Inputs and results of checks. Standard library only, because the doctor also runs where packages are
missing.
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
        said: the message. If `field` is set, the sentence begins with it.
        remedy: what to do, or "".
        file: the file at fault, or "".
        field: the field at fault in that file.
    """

    level: Level
    said: str
    remedy: str = ""
    file: str = ""
    field: str = ""


@dataclass(frozen=True, slots=True)
class ServerPlace:
    """Place where a server is to be started.

    Args:
        path: path of its settings.
        port: port it is to use.
        environment: environment variables it is to be started with.
    """

    path: Path
    port: int
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ServerCase(ServerPlace):
    """Place where a server is to be started, and the settings it is to serve.

    Args:
        settings: the loaded settings.
    """

    settings: Settings


def ok(said: str) -> Finding:
    """Return a finding of level `ok`."""
    return Finding("ok", said)


def warning(said: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Return a finding of level `warning`: it works, but not as well as it could."""
    return Finding("warning", said, remedy, file, field)


def wrong(said: str, remedy: str, *, file: str = "", field: str = "") -> Finding:
    """Return a finding of level `wrong`: something does not work."""
    return Finding("wrong", said, remedy, file, field)


def worst(findings: Sequence[Finding]) -> Finding:
    """Join the findings of the worst level into one, or return the first if all are ok."""
    for level in ("wrong", "warning"):
        if grave := [each for each in findings if each.level == level]:
            remedies = dict.fromkeys(each.remedy for each in grave)
            return Finding(level, " ".join(each.said for each in grave), " ".join(remedies))
    return findings[0]
