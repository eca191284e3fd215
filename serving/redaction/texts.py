"""Every text inside a value of dataclasses or JSON, whatever its place, names included.

A request's texts may take a second to look through, and its record is asked for several times while it runs. So they
are looked through once, beside everything else (`looked_through`), and `map_texts` takes what became of them from there.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, is_dataclass, replace
from functools import cache
from typing import Any, TypeVar, cast

from conductor.model.field_values import names_and_reader
from conductor.model.reply import CallResult
from serving.redaction.personal import PersonalDataRedactor
from serving.redaction.secrets import Redactor, redact_secrets, secrets_in_steps
from serving.redaction.slices import Steps, in_turns

T = TypeVar("T")
Change = Callable[[str], str]
Mapper = Callable[[Any, Change], Any]
STEP_VALUES = 500
"""Of JSON, looked at in one step."""
LEAST_CHARS = 20_000
"""Texts of a request that are shorter together are looked through at once, in less than a millisecond or two."""
_ready = dict[tuple[int, bool], "_Ready"]()
"""What became of values whose texts have been looked through, by the value's identity and whether personal data goes."""


@dataclass(slots=True)
class _Ready:
    value: Any
    """Held here: its identity stays its own."""
    changed: Any
    n_blocks: int = 0
    """That are open and use it."""


def map_texts(value: T, change: Change) -> T:
    """`value` with `change` made of each text in it, names of JSON included; itself where none changes. Names of members
    of enumerations are no texts.
    """
    if _ready and (isinstance(change, PersonalDataRedactor) or change is redact_secrets):
        found = _ready.get((id(value), change is not redact_secrets))
        if found is not None:
            return cast(T, found.changed)
    mapper = _mapper(type(value))
    return value if mapper is None else cast(T, mapper(value, change))


def steps_of(redact: Redactor, text: str) -> Steps[str]:
    """`redact(text)`, in steps."""
    return redact.steps(text) if isinstance(redact, PersonalDataRedactor) else secrets_in_steps(text)


@asynccontextmanager
async def looked_through(redact: Redactor, payer: str, *values: Any) -> AsyncGenerator[None]:
    """Look through the texts of `values` beside everything else: inside this block, `map_texts` knows what becomes of
    them, whichever redactor of that kind it is given.

    Args:
        redact: what takes things out of them.
        payer: the key whose texts they are; keys take turns.
        *values: dataclasses.
    """
    hides, parts = (
        isinstance(redact, PersonalDataRedactor),
        [part for value in values for part in _parts(value)],
    )
    texts = dict[str, str]()
    for part in parts:
        if (id(part), hides) not in _ready:
            map_texts(part, lambda text: texts.setdefault(text, text))
    if sum(map(len, texts)) >= LEAST_CHARS:
        await in_turns(_look_through(texts, redact), payer)
        for part in parts:
            if (id(part), hides) not in _ready:
                _ready[id(part), hides] = _Ready(part, map_texts(part, texts.__getitem__))
    used = [ready for part in parts if (ready := _ready.get((id(part), hides))) is not None]
    for ready in used:
        ready.n_blocks += 1
    try:
        yield
    finally:
        for ready in used:
            ready.n_blocks -= 1
            if not ready.n_blocks:
                _ready.pop((id(ready.value), hides), None)


def _parts(value: Any) -> list[Any]:
    """`value` and, before it, what it consists of: parts outlive a value that is copied with a change."""
    parts = list[Any]()
    kind = cast(type[Any], type(value))
    for field in names_and_reader(kind)[1](value) if is_dataclass(kind) else ():
        parts += field if isinstance(field, tuple) else [field]
    return [
        each
        for each in (*parts, value)
        if _mapper(cast(type[Any], type(each))) is not None and not isinstance(each, str)
    ]


def _look_through(texts: dict[str, str], redact: Redactor) -> Steps[None]:
    for text in texts:
        texts[text] = yield from steps_of(redact, text)
        yield


def json_in_steps(value: Any, redact: Redactor) -> Steps[tuple[Any, bool]]:
    """What becomes of parsed JSON, which is changed in place, and whether anything was; however deep it is."""
    if isinstance(value, str):
        changed = yield from steps_of(redact, value)
        return changed, changed != value
    waiting: list[Any] = [value] if isinstance(value, list | dict) else []
    has_changed, n_values = False, 0
    while waiting:
        held: Any = waiting.pop()
        names = dict[str, str]()
        items = cast(Iterable[tuple[Any, Any]], held.items() if isinstance(held, dict) else enumerate(held))
        for key, each in tuple(items):
            if isinstance(key, str):
                names[key] = yield from steps_of(redact, key)
            if isinstance(each, str):
                changed = yield from steps_of(redact, each)
                if changed != each:
                    held[key], has_changed = changed, True
            elif isinstance(each, list | dict):
                waiting.append(cast(Any, each))
            n_values += 1
            if not n_values % STEP_VALUES:
                yield
        if isinstance(held, dict) and any(name != changed for name, changed in names.items()):
            named = cast(dict[str, Any], held)
            renamed = with_names(named, names.__getitem__)
            named.clear()
            named.update(renamed)
            has_changed = True
    return cast(Any, value), has_changed


def with_names(held: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """`held` with `change` made of each name. No value is lost: of names that become the same, later ones get a number."""
    named, last = dict[str, Any](), dict[str, int]()
    for name, each in held.items():
        changed = change(name)
        if changed != name:
            begin, n = changed, last.get(changed, 1)
            while changed in named or changed in held:
                n += 1
                changed = f"{begin} {n}"
            last[begin] = n
        named[changed] = each
    return named


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
    shaped = with_names({name: map_texts(each, change) for name, each in held.items()}, change)
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
