"""Every text inside a value or JSON, whatever its place, names included.

A request's texts may take a second to look through, and its record is asked for several times while it runs. So they
are looked through once, beside everything else (`known_texts`), and `map_texts` takes what became of them from there.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple, replace

from conductor.model.reply import CallResult
from conductor.model.value import Value
from serving.redaction.personal import PersonalDataRedactor
from serving.redaction.secrets import LEAST_CHARS as LEAST_SECRET_CHARS
from serving.redaction.secrets import Redactor, redact_secrets, secrets_in_steps
from serving.redaction.slices import Steps, in_turns

T = TypeVar("T")
Change = Callable[[str], str]
Mapper = Callable[[Any, Change], Any]
STEP_VALUES = 500
"""Of JSON, looked at in one step."""
LEAST_CHARS = 20_000
"""Texts of a request that are shorter together are looked through at once, in less than a millisecond or two."""
LONG_CHARS = 1_000
"""A text that is longer is known wherever else it stands, such as the question in the prompt of a step."""
GAP_CHARS = 4_000
"""Between two texts that another quotes."""
Key = tuple[int | str, bool]
"""A value's identity, or a long text itself, and whether personal data goes."""
_ready = dict[Key, "_Ready"]()
"""What became of values whose texts have been looked through."""


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
    mapper = _mapper(type(value))
    if mapper is None:
        return value
    if _ready and (isinstance(change, PersonalDataRedactor) or change is redact_secrets):
        known = value if isinstance(value, str) and len(value) >= LONG_CHARS else id(value)
        found = _ready.get((known, change is not redact_secrets))
        if found is not None:
            return value if found.changed == known else cast(T, found.changed)
    return cast(T, mapper(value, change))


def steps_of(redact: Redactor, text: str) -> Steps[str]:
    """`redact(text)`, in steps."""
    return redact.steps(text) if isinstance(redact, PersonalDataRedactor) else secrets_in_steps(text)


class KnownTexts:
    """The long texts of one request that were looked through, and those that are made of them meanwhile: a prompt quotes
    the question. All are known to `map_texts` until `close`.

    Args:
        redact: what takes things out of texts.
        values: of `_ready`, by their keys there.
    """

    def __init__(self, redact: Redactor, values: Mapping[Key, Any]) -> None:
        self._redact, self._hides = redact, isinstance(redact, PersonalDataRedactor)
        self._used = [key for key in values if key in _ready]
        for key in self._used:
            _ready[key].n_blocks += 1
        self._texts = [key[0] for key in self._used if isinstance(key[0], str)]

    def learn(self, value: Any) -> None:
        """Look through the long texts of `value` that are not known, without what they quote of those that are."""
        if self._texts:
            map_texts(value, self._learn)

    def close(self) -> None:
        """Forget them, but for those that another request has."""
        for key in self._used:
            ready = _ready[key]
            ready.n_blocks -= 1
            if not ready.n_blocks:
                del _ready[key]

    def _learn(self, text: str) -> str:
        key = (text, self._hides)
        if len(text) >= LEAST_CHARS and key not in _ready:
            _ready[key] = _Ready(text, self._compose(text), 1)
            self._used.append(key)
        return text

    def _compose(self, text: str) -> str:
        parts, at = list[str](), 0
        for known in self._texts:
            begin = text.find(known, at, at + len(known) + GAP_CHARS)
            end = begin + len(known)
            if begin < 0 or text[max(begin - 1, at) : begin].isalnum() or text[end : end + 1].isalnum():
                continue
            parts += self._redact(text[at:begin]), _ready[known, self._hides].changed
            at = end
        return "".join([*parts, self._redact(text[at:])])


@asynccontextmanager
async def known_texts(redact: Redactor, payer: str, *values: Any) -> AsyncGenerator[KnownTexts]:
    """Look through the texts of `values` beside everything else: inside this block, `map_texts` knows what becomes of
    them, and of long ones also in other values, whichever redactor of that kind it is given.

    Args:
        redact: what takes things out of them.
        payer: the key whose texts they are; keys take turns.
        *values: instances of `Value`.
    """
    hides = isinstance(redact, PersonalDataRedactor)
    if not (_ready or _is_long(values)):
        yield KnownTexts(redact, {})
        return
    held: dict[Key, Any] = {(id(part), hides): part for value in values for part in _parts(value)}
    texts = dict[str, str]()
    for part in held.values():
        map_texts(part, lambda text: texts.setdefault(text, text))
    if sum(map(len, texts)) >= LEAST_CHARS:
        held |= {(text, hides): text for text in texts if len(text) >= LONG_CHARS}
        if not all(key in _ready for key in held):
            await in_turns(_look_through(texts, redact), payer)
            for key, part in held.items():
                _ready.setdefault(key, _Ready(part, map_texts(part, texts.__getitem__)))
    known = KnownTexts(redact, held)
    try:
        yield known
    finally:
        known.close()


def _is_long(values: tuple[Any, ...]) -> bool:
    """Return whether the texts of `values` may have `LEAST_CHARS` together."""
    try:
        return len(msgspec.json.encode(values)) >= LEAST_CHARS
    except (
        TypeError,
        ValueError,
        OverflowError,
        RecursionError,
    ):  # halves of characters, or what JSON has no word for
        return True


def _parts(value: Any) -> list[Any]:
    """`value` and, before it, what it and the values in it consist of: parts outlive a value that is copied with a change."""
    parts = list[Any]()
    for field in astuple(value) if isinstance(value, Value) else ():
        parts += field if isinstance(field, tuple) else _parts(field)
    return [
        each
        for each in (*parts, value)
        if _mapper(cast(type[Any], type(each))) is not None and not isinstance(each, str)
    ]


def _look_through(texts: dict[str, str], redact: Redactor) -> Steps[None]:
    hides = isinstance(redact, PersonalDataRedactor)
    for text in texts:
        ready = _ready.get((text, hides))
        texts[text] = ready.changed if ready else (yield from steps_of(redact, text))
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
    if issubclass(kind, Value):
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


def _fields_mapper(kind: type[Value]) -> Mapper | None:
    hints = get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if _may_hold_text(hints[name])]
    if not names:
        return None

    def map_fields(value: Any, change: Change) -> Any:
        least_chars = LEAST_SECRET_CHARS if change is redact_secrets else 1
        changed: dict[str, Any] = {}
        for name in names:
            held = getattr(value, name)
            if not held:
                continue
            kind_held = held.__class__
            if kind_held is str:
                if len(held) < least_chars:
                    continue
                mapped = map_texts(held, change) if _ready else change(held)
            else:
                mapper = _mapper(kind_held)
                if mapper is None:
                    continue
                mapped = map_texts(held, change) if _ready else mapper(held, change)
            if mapped is not held:
                changed[name] = mapped
        if kind is CallResult and "output" in changed:
            changed["logprobs"] = ()  # its tokens would tell what was taken out of it
        return replace(value, **changed) if changed else value

    return map_fields


def _may_hold_text(hint: Any) -> bool:
    """Return whether a field of that type may hold a text: not if it holds a number, or one of some words."""
    if get_origin(hint) in (Union, UnionType):
        return any(map(_may_hold_text, get_args(hint)))
    if get_origin(hint) is Literal:
        return False
    if not isinstance(hint, type):
        return True
    return not issubclass(hint, int | float | Decimal | Enum | NoneType)
