"""Base classes of values: what is shared, never changed, and written as JSON.

msgspec makes, copies, compares, encodes and decodes them in C. `conductor/run/codec.py` says what their JSON looks like.
"""

from collections.abc import Callable
from enum import Enum
from functools import cache
from operator import attrgetter
from typing import Any, ClassVar

import msgspec
from msgspec.structs import FieldInfo, fields, force_setattr


class Value(
    msgspec.Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True, forbid_unknown_fields=True
):
    """Immutable value. Its JSON is an object with the name of its class as `type`."""


class DefaultingValue(Value, frozen=True):
    """Value in which whatever equals a field's default is that default.

    msgspec leaves a field out of the JSON if its value is the default object itself. A class needs this base if one of its
    defaults can have equals that are other objects (a test says so).
    """

    def __post_init__(self) -> None:
        defaults, read = _object_defaults(self.__class__)
        for value, (name, default) in zip(read(self), defaults, strict=True):
            if value is not default and value == default and value.__class__ is default.__class__:
                force_setattr(self, name, default)


class JsonValue(Value, frozen=True):
    """Value with fields that hold JSON, which has no hash: `not_hashed`."""

    not_hashed: ClassVar[frozenset[str]] = frozenset()

    def __hash__(self) -> int:
        return hash(_hashed(self.__class__)(self))


class MarkedValue(JsonValue, frozen=True):
    """Value with fields that make no difference: values that differ only in `not_compared` are equal."""

    not_compared: ClassVar[frozenset[str]] = frozenset()

    def __eq__(self, other: object) -> bool:
        kind = self.__class__
        if other.__class__ is not kind:
            return NotImplemented
        read = _compared(kind)
        return bool(read(self) == read(other))

    def __hash__(self) -> int:
        return hash(_hashed(self.__class__)(self))


Reader = Callable[[Any], tuple[Any, ...]]


def has_equals(field: FieldInfo) -> bool:
    """Return whether other objects can equal the default of a field. Python makes one object alone of None, a boolean, a
    small number, the empty text, the empty tuple and a member of an enumeration.
    """
    default = field.default
    if default is msgspec.NODEFAULT or default is None or isinstance(default, bool | Enum):
        return False
    is_small = type(default) is int and default in range(-5, 257)
    return not (is_small or default in ((), ""))


@cache
def _object_defaults(kind: type[Value]) -> tuple[tuple[tuple[str, Any], ...], Reader]:
    """Return the names and defaults of the fields that `has_equals` is true of, and what reads their values."""
    known = tuple((field.name, field.default) for field in fields(kind) if has_equals(field))
    return known, _reader([name for name, _ in known])


@cache
def _compared(kind: type[MarkedValue]) -> Reader:
    """Return what reads the fields that are compared."""
    return _reader([name for name in kind.__struct_fields__ if name not in kind.not_compared])


@cache
def _hashed(kind: type[JsonValue]) -> Reader:
    """Return what reads the fields that are hashed."""
    left_out = kind.not_hashed | (kind.not_compared if issubclass(kind, MarkedValue) else frozenset[str]())
    return _reader([name for name in kind.__struct_fields__ if name not in left_out])


def _reader(names: list[str]) -> Reader:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])
