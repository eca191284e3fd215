"""Every text inside a value of dataclasses, whatever its place."""

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from conductor.model.field_values import names_and_reader
from conductor.model.reply import CallResult

T = TypeVar("T")
Change = Callable[[str], str]
Mapper = Callable[[Any, Change], Any]


def map_texts(value: T, change: Change) -> T:
    """`value` with `change` made of each text in it; itself where none changes. Names of members of
    enumerations are no texts.
    """
    mapper = _mapper(type(value))
    return value if mapper is None else cast(T, mapper(value, change))


@cache
def _mapper(kind: type[Any]) -> Mapper | None:
    """What maps values of exactly that type, None: they hold no text. Found once: this is done for every event of every
    run, and most of its values are numbers.
    """
    if kind is str:
        return lambda value, change: change(value)
    if kind is tuple:
        return _map_tuple
    if kind is list:  # of JSON
        return lambda values, change: [map_texts(each, change) for each in values]
    if is_dataclass(kind):
        return _fields_mapper(kind)
    return _map_mapping if issubclass(kind, Mapping) else None


def _map_tuple(items: tuple[Any, ...], change: Change) -> tuple[Any, ...]:
    if not items:
        return items
    mapped = tuple([map_texts(each, change) for each in items])
    return items if all(a is b for a, b in zip(mapped, items, strict=True)) else mapped


def _map_mapping(held: Mapping[str, Any], change: Change) -> Mapping[str, Any]:
    shaped = {name: map_texts(each, change) for name, each in held.items()}
    return shaped if shaped != held else held


def _fields_mapper(kind: type[Any]) -> Mapper:
    names, read = names_and_reader(kind)

    def map_fields(value: Any, change: Change) -> Any:
        changed: dict[str, Any] = {}
        for name, held in zip(names, read(value), strict=True):
            mapper = _mapper(cast(type[Any], type(held)))
            if mapper is not None and (mapped := mapper(held, change)) is not held:
                changed[name] = mapped
        if kind is CallResult and "output" in changed:
            changed["logprobs"] = ()  # its tokens would tell what was taken out of it
        return replace(value, **changed) if changed else value

    return map_fields
