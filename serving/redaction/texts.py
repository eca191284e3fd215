"""Every text inside a value of dataclasses, whatever its place."""

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from conductor.model.reply import CallResult

T = TypeVar("T")


def map_texts(value: T, change: Callable[[str], str]) -> T:
    """`value` with `change` made of each text in it; itself where none changes. Names of members of
    enumerations are no texts.
    """
    return cast(T, _map(value, change))


def _map(value: Any, change: Callable[[str], str]) -> Any:
    kind = cast(type[Any], type(value))
    if kind is str:
        return change(value)
    if kind is tuple:
        items = cast(tuple[Any, ...], value)
        mapped = tuple(_map(each, change) for each in items)
        return items if all(a is b for a, b in zip(mapped, items, strict=True)) else mapped
    if kind is list:  # of JSON
        return [_map(each, change) for each in cast(list[Any], value)]
    if isinstance(value, Mapping):
        held = cast(Mapping[str, Any], value)
        shaped = {name: _map(each, change) for name, each in held.items()}
        return shaped if shaped != held else held
    if is_dataclass(kind):
        changed: dict[str, Any] = {}
        for name in _names(kind):
            held = getattr(value, name)
            if (mapped := _map(held, change)) is not held:
                changed[name] = mapped
        if kind is CallResult and "output" in changed:
            changed["logprobs"] = ()  # its tokens would tell what was taken out of it
        return replace(value, **changed) if changed else value
    return value


@cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(each.name for each in fields(kind))
