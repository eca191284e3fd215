"""Base classes of immutable values that are written as JSON.

msgspec creates, copies, compares, encodes and decodes them in C. `conductor/run/codec.py` describes their JSON.
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
    """Immutable value. Its JSON is an object with the name of its class, or the older name in `tag`, as `type`."""


class DefaultingValue(Value, frozen=True):
    """Value that stores the default object itself in fields that equal it, because msgspec omits only that.

    A class needs it if another object can equal a default. A test finds these classes.
    """

    def __post_init__(self) -> None:
        defaults, read = _object_defaults(self.__class__)
        for value, (name, default) in zip(read(self), defaults, strict=True):
            if value is not default and value == default and value.__class__ is default.__class__:
                force_setattr(self, name, default)


class JsonValue(Value, frozen=True):
    """Value with JSON in fields that `not_hashed` names. They cannot be hashed, so the hash ignores them."""

    not_hashed: ClassVar[frozenset[str]] = frozenset()

    def __hash__(self) -> int:
        return hash(_hash_reader(self.__class__)(self))


class MarkedValue(JsonValue, frozen=True):
    """Value that ignores the fields in `not_compared` when it is compared or hashed."""

    not_compared: ClassVar[frozenset[str]] = frozenset()

    def __eq__(self, other: object) -> bool:
        kind = self.__class__
        if other.__class__ is not kind:
            return NotImplemented
        read = _comparison_reader(kind)
        return bool(read(self) == read(other))

    __hash__ = JsonValue.__hash__  # a class with `__eq__` alone has none


Reader = Callable[[Any], tuple[Any, ...]]


def has_equals(field: FieldInfo) -> bool:
    """Return whether another object can equal a field's default. None, booleans, small numbers, empty texts
    and tuples, and enumerations are single objects.
    """
    default = field.default
    if default is msgspec.NODEFAULT or default is None or isinstance(default, bool | Enum):
        return False
    is_small = type(default) is int and default in range(-5, 257)
    return not (is_small or default in ((), ""))


@cache
def _object_defaults(kind: type[Value]) -> tuple[tuple[tuple[str, Any], ...], Reader]:
    """Return the name and default of each field for which `has_equals` is true, and a reader of their values."""
    defaults = tuple((field.name, field.default) for field in fields(kind) if has_equals(field))
    return defaults, _reader([name for name, _ in defaults])


@cache
def _comparison_reader(kind: type[MarkedValue]) -> Reader:
    """Return a reader of the fields that comparisons use."""
    return _reader([name for name in kind.__struct_fields__ if name not in kind.not_compared])


@cache
def _hash_reader(kind: type[JsonValue]) -> Reader:
    """Return a reader of the fields that the hash uses."""
    ignored = kind.not_hashed | (kind.not_compared if issubclass(kind, MarkedValue) else frozenset[str]())
    return _reader([name for name in kind.__struct_fields__ if name not in ignored])


def _reader(names: list[str]) -> Reader:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda value: tuple([getattr(value, name) for name in names])
