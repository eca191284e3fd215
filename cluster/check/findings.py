"""What a check has to say: one thing that does not fit, where it is written, and what to write instead."""

from dataclasses import dataclass
from typing import Any

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
    """A file cannot be read for what it should be; the message names it."""


class Frozen(BaseModel):
    """What a stranger wrote: unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def section(data: Any, key: str) -> dict[str, Any]:
    """`data[key]` where it is a mapping, else an empty one."""
    inner = data.get(key) if isinstance(data, dict) else None
    return inner if isinstance(inner, dict) else {}
