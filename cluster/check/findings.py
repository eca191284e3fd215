"""What a check finds: one disagreement, where it is written, and what to write instead."""

from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel, ConfigDict


@dataclass(frozen=True, slots=True)
class Finding:
    """One disagreement. A fault makes `podium check` exit with 1; a remark does not."""

    file: str
    field: str
    says: str
    remedy: str
    fault: bool = True


class CheckError(Exception):
    """A file is not what it should be; the message names it."""


class Frozen(BaseModel):
    """Data from a file of the user: unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def mapping(data: object) -> dict[str, Any]:
    """`data` where it is a mapping, else an empty one."""
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def items(data: object) -> list[Any]:
    """`data` where it is a list, else an empty one."""
    return cast("list[Any]", data) if isinstance(data, list) else []


def section(data: object, key: str) -> dict[str, Any]:
    """`data[key]` where both are mappings, else an empty one."""
    return mapping(mapping(data).get(key))
