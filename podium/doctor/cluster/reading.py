"""Helpers to read YAML files of users: an error, a strict base model, typed access to mappings and lists."""

from typing import Any, cast

from pydantic import BaseModel, ConfigDict


class CheckError(Exception):
    """A file cannot be used. The message names it."""


class FileModel(BaseModel):
    """Base class for the content of a user's file. Unknown keys are rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


def mapping(data: object) -> dict[str, Any]:
    return cast("dict[str, Any]", data) if isinstance(data, dict) else {}


def items(data: object) -> list[Any]:
    return cast("list[Any]", data) if isinstance(data, list) else []


def section(data: object, key: str) -> dict[str, Any]:
    """Return `data[key]` if both are mappings, else an empty one."""
    return mapping(mapping(data).get(key))
