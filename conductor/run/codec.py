"""JSON encoding of records, events and tasks: `load(type(value), dump(value)) == value`.

- Each value is an object with its class as `type` (`conductor/model/value.py`).
- Fields that equal their default are omitted, so new fields with a default do not break older values.
- Money is a string, so that it stays exact. Enumerations are their values.
- msgspec encodes everything except lone surrogates and non-finite numbers, which fall back to `json`.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

from conductor.run.record import VERSION

T = TypeVar("T")
Json = Any
TYPE = "type"
RETIRED_FIELDS = {"PlanRecord": frozenset({"guess"})}
"""Fields by class that older versions wrote. They are skipped."""
RETIRED_EVENTS = frozenset({"GuessStarted", "GuessEnded"})
"""Events that older versions wrote. Readers of stored events skip them."""
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
"""MessagePack prefix of a float that is infinite or not a number."""
_PLACE = re.compile(r"^(?P<what>.*) - at `\$\.?(?P<where>.*)`$", re.DOTALL)


class UnreadableRecord(ValueError):
    """A stored value cannot be read by this version. The message names the field."""


def dump(value: Any) -> Json:
    """Return `value` as JSON-compatible Python objects."""
    return json.loads(encode(value))


def encode(value: Any) -> bytes:
    """Return `value` as JSON. Encode lone surrogates and non-finite numbers as `json.dumps` does."""
    try:
        data = msgspec.json.encode(value, enc_hook=_base_value)
    except (UnicodeEncodeError, TypeError):
        data = b""
    # msgspec writes numbers that are not finite as null.
    if data and (b"null" not in data or not _has_not_finite(value)):
        return data
    return json.dumps(msgspec.to_builtins(value, enc_hook=_base_value), separators=(",", ":")).encode()


def load(kind: type[T], data: Json) -> T:
    """Return the value of type `kind` from the output of `dump`.

    Raises:
        UnreadableRecord: `data` is not a valid `kind`, or a newer version wrote it.
    """
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as exc:
        current = _without_retired(data)
        if current != data:
            return load(kind, current)
        raise UnreadableRecord(_explain(exc, data)) from exc


def decode(kind: type[T], data: bytes) -> T:
    """Return the value that `encode` wrote. Raise UnreadableRecord, or ValueError if it is not JSON."""
    try:
        return cast(T, _decoder(kind).decode(data))
    except (msgspec.MsgspecError, UnicodeDecodeError):  # written by `json.dumps` or by an older version
        return load(kind, json.loads(data))


@cache
def _decoder(kind: type[T]) -> "msgspec.json.Decoder[T]":
    return msgspec.json.Decoder(kind)


def _base_value(value: Any) -> Any:
    """Convert an instance of a subclass of a JSON type to that type, because msgspec does not encode it."""
    for kind in (str, int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, Mapping):
        return dict(cast(Mapping[Any, Any], value))
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _has_not_finite(value: Any) -> bool:
    try:
        return _NOT_FINITE.search(msgspec.msgpack.encode(value, enc_hook=_base_value)) is not None
    except OverflowError:  # a number of more than 64 bits
        return True


def _without_retired(data: Json) -> Json:
    if isinstance(data, list):
        return [_without_retired(each) for each in cast(list[Json], data)]
    if not isinstance(data, dict):
        return data
    shape = cast(dict[str, Json], data)
    retired = RETIRED_FIELDS.get(str(shape.get(TYPE)), frozenset[str]())
    return {name: _without_retired(each) for name, each in shape.items() if name not in retired}


def _explain(error: msgspec.ValidationError, data: Json) -> str:
    """Return the error's message with the path of the field, unless a newer version wrote the record."""
    for where, version in _versions(data, ""):
        if type(version) is int and version > VERSION:
            return f"{where}: the record has version {version}, but this version of Podium reads only versions up to {VERSION}."
    place = _PLACE.match(str(error))
    if place is None or not place["where"]:
        return f"{error}."
    where = re.sub(r"\[(.*?)\]", r".\1", place["where"]).lstrip(".")
    return f"{where}: {place['what']}."


def _versions(data: Json, where: str) -> Iterator[tuple[str, Json]]:
    """Yield the path of the version field and the version of each record in `data`."""
    if isinstance(data, list):
        for n, each in enumerate(cast(list[Json], data)):
            yield from _versions(each, f"{where}{n}.")
    elif isinstance(data, dict):
        shape = cast(dict[str, Json], data)
        if shape.get(TYPE) == "Record" and "version" in shape:
            yield f"{where}version", shape["version"]
        for name, each in shape.items():
            yield from _versions(each, f"{where}{name}.")
