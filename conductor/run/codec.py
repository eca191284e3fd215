"""Records, events and tasks as JSON values and back: `load(type(value), dump(value)) == value`.

The form follows the dataclasses: an object for each, with a `type` where a field can hold one of several.
Fields that equal their default are left out, so a field with a default can be added and older values still
load. Money is a text, so that no cent is lost; enumerations are their values.
"""

import types
from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from itertools import compress
from math import isfinite
from operator import is_not
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from conductor.model.field_values import names_and_reader
from conductor.run.record import VERSION, Record

Json = Any
TYPE = "type"
NOTHING = object()
"""Equals nothing but itself."""


RETIRED_FIELDS = {"PlanRecord": frozenset({"guess"})}
"""Fields that older versions wrote, by class: they are skipped."""
RETIRED_EVENTS = frozenset({"GuessStarted", "GuessEnded"})
"""Events that older versions wrote: readers of stored events skip them."""


class NotFinite(float):
    """A float for which JSON has no word. Of a type of its own, so that who writes JSON does not take it for one
    that there is: orjson would write `null`.
    """


class UnreadableRecord(ValueError):
    """A value that this version cannot read; the message names the field."""


def dump(value: Any) -> Json:
    """`value` as what `json.dumps` takes."""
    return _dumper(value.__class__)(value)


def load(kind: Any, data: Json) -> Any:
    """The value of type `kind` that `dump` made `data` of.

    Raises:
        UnreadableRecord: `data` is not a valid `kind`, or a newer version wrote it.
    """
    return _loader(kind)(data, "")


Dumper = Callable[[Any], Json]
AS_THEY_ARE = frozenset({str, int, bool, types.NoneType})
"""Types whose values are JSON."""


@cache
def _dumper(kind: type[Any]) -> Dumper:
    """What dumps a value of exactly that type: found once, because a record has hundreds of values."""
    if is_dataclass(kind):
        return _dataclass_dumper(kind)
    if issubclass(kind, Enum):
        return lambda value: value.value
    if issubclass(kind, Decimal):
        return str
    if issubclass(kind, float):
        return lambda value: value if isfinite(value) else NotFinite(value)
    if issubclass(kind, (tuple, list)):
        return lambda values: [dump(each) for each in values]
    if issubclass(kind, Mapping):
        return lambda values: {name: dump(each) for name, each in values.items()}
    return lambda value: value


def _dataclass_dumper(kind: type[Any]) -> Dumper:
    facts = [(each.name, *_default_of(each)) for each in fields(kind)]
    defaults = [default for *_, default in facts]
    _, read = names_and_reader(kind)

    def dump_it(value: Any) -> Json:
        shape: dict[str, Json] = {TYPE: kind.__name__}
        values = read(value)
        # Most values are the very default, and comparing those that only equal it takes long.
        others = compress(zip(facts, values, strict=True), map(is_not, values, defaults))
        for (name, kind_left_out, default), held in others:
            kind_held = held.__class__
            if (kind_left_out is not None and kind_held is not kind_left_out) or held != default:
                shape[name] = held if kind_held in AS_THEY_ARE else _dumper(kind_held)(held)
        return shape

    return dump_it


def _default_of(each: "Field[Any]") -> tuple[type[Any] | None, Any]:
    """What is left out of a field: what equals this, and is of that type where one is given."""
    if each.default_factory is not MISSING and not each.metadata.get("always_written"):
        return None, each.default_factory()
    if each.default is MISSING or each.metadata.get("always_written"):
        return None, NOTHING
    return cast(type[Any], type(each.default)), each.default


Loader = Callable[[Json, str], Any]


@cache
def _loader(kind: Any) -> Loader:
    """What reads a value of type `kind`, given its place for errors."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union(args)
    if origin is Literal:
        return _one_of(frozenset(args))
    if origin is tuple:
        return _tuple(args[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping(args[1])
    if is_dataclass(kind):
        return _dataclass(cast(type[Any], kind))
    if kind is Decimal:
        return lambda data, where: _convert(Decimal, data, where)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return lambda data, where: _convert(kind, data, where)
    return _plain(kind)


def _dataclass(kind: type[Any]) -> Loader:
    hints = get_type_hints(kind)
    names = {each.name: each for each in fields(kind)}
    retired = RETIRED_FIELDS.get(kind.__name__, frozenset[str]())

    def load_it(data: Json, where: str) -> Any:
        if not isinstance(data, dict):
            raise UnreadableRecord(
                f"{where or kind.__name__}: expected an object, got {type(data).__name__}."
            )
        given = cast(dict[str, Json], data)
        if kind is Record:
            _check_version(given.get("version", VERSION), f"{where}version")
        name = given.get(TYPE, kind.__name__)
        if name != kind.__name__:
            raise UnreadableRecord(f"{where}{TYPE}: expected {kind.__name__!r}, got {name!r}.")
        unknown = given.keys() - names.keys() - {TYPE} - retired
        if unknown:
            raise UnreadableRecord(
                f"{where}{min(unknown)}: {kind.__name__} has no such field in this version."
            )
        try:
            loaded = {
                name: _loader(hints[name])(given[name], f"{where}{name}.") for name in names if name in given
            }
            return kind(**loaded)
        except TypeError as exc:
            raise UnreadableRecord(f"{where or kind.__name__}: {exc}.") from exc

    return load_it


def _check_version(version: Json, where: str) -> None:
    """Looked at first: a newer version may have fields that this one does not know.

    Raises:
        UnreadableRecord: a newer version wrote it, or it is none.
    """
    if type(version) is not int:
        raise UnreadableRecord(f"{where}: expected a number, got {version!r}.")
    if version > VERSION:
        raise UnreadableRecord(
            f"{where}: the record is of version {version}; this Podium reads up to {VERSION}."
        )


def _union(args: tuple[Any, ...]) -> Loader:
    classes = {cast(type[Any], each).__name__: cast(type[Any], each) for each in args if is_dataclass(each)}
    plain = [each for each in args if each is not type(None) and not is_dataclass(each)]

    def load_it(data: Json, where: str) -> Any:
        if data is None and type(None) in args:
            return None
        given: Json = data
        if isinstance(data, dict) and classes:
            name = cast(dict[str, Json], data).get(TYPE)
            if name not in classes:
                raise UnreadableRecord(f"{where}type: expected one of {sorted(classes)}, got {name!r}.")
            return _loader(classes[name])(given, where)
        if len(plain) == 1:
            return _loader(plain[0])(given, where)
        kind = cast(type[Any], type(given))
        if kind in plain:
            return given
        raise UnreadableRecord(f"{where.rstrip('.')}: a {kind.__name__} is not expected here.")

    return load_it


def _one_of(values: frozenset[Any]) -> Loader:
    def load_it(data: Json, where: str) -> Any:
        if data not in values:
            raise UnreadableRecord(f"{where.rstrip('.')}: expected one of {sorted(values)}, got {data!r}.")
        return data

    return load_it


def _tuple(kind: Any) -> Loader:
    def load_it(data: Json, where: str) -> Any:
        if not isinstance(data, list):
            raise UnreadableRecord(f"{where.rstrip('.')}: expected a list, got {type(data).__name__}.")
        each = _loader(kind)
        return tuple(each(item, f"{where}{n}.") for n, item in enumerate(cast(list[Json], data)))

    return load_it


def _mapping(kind: Any) -> Loader:
    def load_it(data: Json, where: str) -> Any:
        if not isinstance(data, dict):
            raise UnreadableRecord(f"{where.rstrip('.')}: expected an object, got {type(data).__name__}.")
        each = _loader(kind)
        return {name: each(item, f"{where}{name}.") for name, item in cast(dict[str, Json], data).items()}

    return load_it


def _plain(kind: Any) -> Loader:
    def load_it(data: Json, where: str) -> Any:
        if kind is float and type(data) is int:
            return float(data)
        if kind not in (object, Any) and not isinstance(data, kind):
            name = getattr(kind, "__name__", str(kind))
            raise UnreadableRecord(f"{where.rstrip('.')}: expected {name}, got {type(data).__name__}.")
        return data

    return load_it


def _convert(kind: Callable[[Any], Any], data: Json, where: str) -> Any:
    try:
        return kind(data)
    except (ValueError, ArithmeticError, TypeError) as exc:
        raise UnreadableRecord(f"{where.rstrip('.')}: {data!r} cannot be read: {exc}.") from exc
