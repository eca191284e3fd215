"""Redaction of every text inside dataclasses or JSON, including the names of JSON fields.

Redacting the texts of a request may take a second, and the record of a run is read several times during the
run. So `redact_ahead` redacts the texts once, in the background, and `map_texts` reuses the results.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec.structs import astuple, replace

from conductor.model.messages import Message, Native
from conductor.model.reply import CallResult
from conductor.model.terms import Permit
from conductor.model.value import Value
from conductor.run.record import Account
from serving.redaction.opaque import is_opaque_field, place_of
from serving.redaction.personal import PersonalDataRedactor
from serving.redaction.secrets import LEAST_CHARS as LEAST_SECRET_CHARS
from serving.redaction.secrets import Redactor, is_encoded, redact_secrets, secrets_in_steps
from serving.redaction.slices import Steps, finish, in_turns

T = TypeVar("T")
Change = Callable[[str], str]
Mapper = Callable[[Any, Change], Any]
STEP_VALUES = 500
"""Number of JSON values that are read in one step."""
LEAST_CHARS = 20_000
"""Total length of a request's texts, in characters, below which they are redacted immediately. That takes one
or two milliseconds."""
LONG_CHARS = 1_000
"""Minimum length, in characters, of a text that is also recognised inside other values. For example, the
prompt of a step contains the question."""
GAP_CHARS = 4_000
"""Maximum number of characters between two known texts that the same prompt quotes."""
_OF_PROVIDERS: Mapping[type[Value], str] = {Native: "payload", Message: "thoughts"}
"""Fields with JSON of a provider."""
Repack = Callable[[str], Steps[str | None]]
"""Redacts the texts inside opaque content. Returns None for content that this server did not pack."""
Key = tuple[int | str, bool]
"""The `id()` of a value, or a long text itself, with whether personal data is redacted."""
_ready = dict[Key, "_Ready"]()
"""Values that are already redacted."""


@dataclass(slots=True)
class _Ready:
    value: Any
    """Original value. It is kept alive so that its `id()` stays unique."""
    changed: Any
    n_blocks: int = 0
    """Number of open `redact_ahead` blocks that use this value."""


def redactor_of(permit: Permit) -> Redactor:
    """Return the redactor for all texts of one request that are stored, traced or logged."""
    return PersonalDataRedactor() if permit.hides_personal_data else redact_secrets


def map_texts(value: T, change: Change) -> T:
    """Return `value` with `change` applied to its texts and names of JSON fields, or itself if none changes."""
    mapper = _mapper(type(value))
    if mapper is None:
        return value
    if _ready and (isinstance(change, PersonalDataRedactor) or change is redact_secrets):
        key = value if isinstance(value, str) and len(value) >= LONG_CHARS else id(value)
        ready = _ready.get((key, change is not redact_secrets))
        if ready is not None:
            return value if ready.changed == key else cast(T, ready.changed)
    return cast(T, mapper(value, change))


def steps_of(redact: Redactor, text: str) -> Steps[str]:
    """Redact `text` with `redact`, in short steps between which other work can run."""
    return redact.steps(text) if isinstance(redact, PersonalDataRedactor) else secrets_in_steps(text)


class KnownTexts:
    """Cache of the redacted long texts of one request.

    It also learns later texts, such as answers and the prompts that quote the question. `map_texts` uses the
    cache until `close` is called.
    """

    def __init__(self, redact: Redactor, payer: Account, values: Mapping[Key, Any]) -> None:
        self._redact, self._hides = redact, isinstance(redact, PersonalDataRedactor)
        self._payer, self._is_closed = payer, False
        self._used = dict.fromkeys(key for key in values if key in _ready)
        for key in self._used:
            _ready[key].n_blocks += 1
        self._texts = [key[0] for key in self._used if isinstance(key[0], str)]

    def learn(self, value: Any) -> None:
        """Redact the new long texts in `value`. Their quotations of known texts are not redacted again."""
        if self._texts:
            map_texts(value, self._learn)

    async def learn_in_turns(self, value: Any) -> None:
        """Redact the long texts in `value` in the background, where teams take turns. Call it before `value` is
        recorded.
        """
        long_texts = dict[str, None]()

        def find(text: str) -> str:
            if len(text) >= LONG_CHARS:
                long_texts[text] = None
            return text

        map_texts(value, find)
        if sum(map(len, long_texts)) < LEAST_CHARS:
            return
        for text in long_texts:
            key = (text, self._hides)
            if key not in _ready:
                redact = PersonalDataRedactor() if self._hides else redact_secrets  # without earlier limits
                changed = await in_turns(self._compose(text, redact), self._payer)
                if not self._is_closed:
                    _ready.setdefault(key, _Ready(text, changed))
            if self._is_closed:
                return
            if key not in self._used:
                _ready[key].n_blocks += 1
                self._used[key] = None
                self._texts.append(text)

    def close(self) -> None:
        """Remove this request's texts from the cache, except those that another request uses.

        The timer of an idle connection keeps its last request's context, and with it this object. The object
        must therefore hold no texts.
        """
        self._is_closed = True
        for key in self._used:
            ready = _ready[key]
            ready.n_blocks -= 1
            if not ready.n_blocks:
                del _ready[key]
        self._used.clear()
        self._texts.clear()

    def _learn(self, text: str) -> str:
        key = (text, self._hides)
        if len(text) >= LEAST_CHARS and key not in _ready:
            _ready[key] = _Ready(text, finish(self._compose(text, self._redact)), 1)
            self._used[key] = None
        return text

    def _compose(self, text: str, redact: Redactor) -> Steps[str]:
        parts, at = list[str](), 0
        for known_text in self._texts:
            begin = text.find(known_text, at, at + len(known_text) + GAP_CHARS)
            end = begin + len(known_text)
            if begin < 0 or text[max(begin - 1, at) : begin].isalnum() or text[end : end + 1].isalnum():
                continue
            parts.append((yield from steps_of(redact, text[at:begin])))
            parts.append(_ready[known_text, self._hides].changed)
            at = end
        parts.append((yield from steps_of(redact, text[at:])))
        return "".join(parts)


RUN_TEXTS: ContextVar[KnownTexts | None] = ContextVar("run_texts", default=None)
"""Texts of the current run, or None if its texts are not stored."""


@asynccontextmanager
async def redact_ahead(redact: Redactor, payer: Account, *values: Any) -> AsyncGenerator[KnownTexts]:
    """Redact `values` before the block in the background, where teams and their keys (`payer`) take turns.

    Inside, `map_texts` reuses the results with any redactor of the kind, and recognises long texts in other
    values.
    """
    hides = isinstance(redact, PersonalDataRedactor)
    if not (_ready or _is_long(values)):
        known_texts = KnownTexts(redact, payer, {})
        try:
            yield known_texts
        finally:
            known_texts.close()
        return
    parts: dict[Key, Any] = {(id(part), hides): part for value in values for part in _parts(value)}
    texts = dict[str, str]()
    for part in parts.values():
        map_texts(part, lambda text: texts.setdefault(text, text))
    if sum(map(len, texts)) >= LEAST_CHARS:
        parts |= {(text, hides): text for text in texts if len(text) >= LONG_CHARS}
        if not all(key in _ready for key in parts):
            await in_turns(_redact_all(texts, redact), payer)
            for key, part in parts.items():
                _ready.setdefault(key, _Ready(part, map_texts(part, texts.__getitem__)))
    known_texts = KnownTexts(redact, payer, parts)
    try:
        yield known_texts
    finally:
        known_texts.close()


def _is_long(values: tuple[Any, ...]) -> bool:
    """Return whether the texts in `values` may have `LEAST_CHARS` characters or more in total."""
    try:
        return len(msgspec.json.encode(values)) >= LEAST_CHARS
    except (TypeError, ValueError, OverflowError, RecursionError):
        return True  # lone surrogates, or values that JSON cannot express


def _parts(value: Any) -> list[Any]:
    """List what in `value` may contain texts, then itself. Changed copies share inner values, which are
    recognised.
    """
    parts = list[Any]()
    for field in astuple(value) if isinstance(value, Value) else ():
        parts += field if isinstance(field, tuple) else _parts(field)
    return [
        each
        for each in (*parts, value)
        if _mapper(cast(type[Any], type(each))) is not None and not isinstance(each, str)
    ]


def _redact_all(texts: dict[str, str], redact: Redactor) -> Steps[None]:
    hides = isinstance(redact, PersonalDataRedactor)
    for text in texts:
        ready = _ready.get((text, hides))
        texts[text] = ready.changed if ready else (yield from steps_of(redact, text))
        yield


def json_in_steps(value: Any, redact: Redactor, repack: Repack | None = None) -> Steps[tuple[Any, bool]]:
    """Redact parsed JSON of any depth in place, in short steps. Return it, and whether anything changed.

    Opaque content is passed to `repack`, or left unchanged if it is base64.
    """
    if isinstance(value, str):
        changed = yield from steps_of(redact, value)
        return changed, changed != value
    pending: list[tuple[Any, str | None]] = [(value, "")] if isinstance(value, list | dict) else []
    has_changed, n_values = False, 0
    while pending:
        node, place = pending.pop()
        names = dict[str, str]()
        items = cast(Iterable[tuple[Any, Any]], node.items() if isinstance(node, dict) else enumerate(node))
        for key, each in tuple(items):
            if isinstance(key, str):
                names[key] = yield from steps_of(redact, key)
            if isinstance(each, str):
                is_opaque = is_opaque_field(node, key, place)
                changed = yield from _text_in_steps(each, redact, repack, is_opaque=is_opaque)
                if changed != each:
                    node[key], has_changed = changed, True
            elif isinstance(each, list | dict):
                inner = cast(Any, each)
                pending.append((inner, place_of(place, key, inner)))
            n_values += 1
            if not n_values % STEP_VALUES:
                yield
        if isinstance(node, dict) and any(name != changed for name, changed in names.items()):
            entries = cast(dict[str, Any], node)
            renamed = with_names(entries, names.__getitem__)
            entries.clear()
            entries.update(renamed)
            has_changed = True
    return cast(Any, value), has_changed


def _text_in_steps(text: str, redact: Redactor, repack: Repack | None, *, is_opaque: bool) -> Steps[str]:
    if is_opaque:
        if repack and (repacked := (yield from repack(text))) is not None:
            return repacked
        if (yield from is_encoded(text)):
            return text
    return (yield from steps_of(redact, text))


def with_names(values: Mapping[str, Any], change: Change) -> dict[str, Any]:
    """Apply `change` to each name. A number is appended to the later of equal ones, so that no value is lost."""
    renamed, last = dict[str, Any](), dict[str, int]()
    for name, each in values.items():
        changed = change(name)
        if changed != name:
            begin, n = changed, last.get(changed, 1)
            while changed in renamed or changed in values:
                n += 1
                changed = f"{begin} {n}"
            last[begin] = n
        renamed[changed] = each
    return renamed


@cache
def _mapper(kind: type[Any]) -> Mapper | None:
    """Return the function that maps values of exactly the type `kind`, or None if they contain no text.

    The result is cached, because it is needed for every event of every run.
    """
    if kind is str:
        return lambda value, change: change(value)
    if kind is tuple:
        return _map_tuple
    if issubclass(kind, Value):
        return _fields_mapper(kind)
    return _map_json if issubclass(kind, list | Mapping) else None


def _map_tuple(items: tuple[Any, ...], change: Change) -> tuple[Any, ...]:
    if not items:
        return items
    mapped = tuple([map_texts(each, change) for each in items])
    return items if all(a is b for a, b in zip(mapped, items, strict=True)) else mapped


def _map_json(value: Any, change: Change, place: str | None = None) -> Any:
    if isinstance(value, list):
        return [_map_json(each, change, place) for each in cast(list[Any], value)]
    if not isinstance(value, Mapping):
        return map_texts(value, change)
    fields, changed = cast(Mapping[str, Any], value), dict[str, Any]()
    for name, each in fields.items():
        keeps = isinstance(each, str) and is_opaque_field(fields, name, place) and finish(is_encoded(each))
        changed[name] = each if keeps else _map_json(each, change, place_of(place, name, each))
    mapped = with_names(changed, change)
    return mapped if mapped != fields else fields


def _map_providers(value: Any, change: Change) -> Any:
    return _map_json(value, change, "")


def _fields_mapper(kind: type[Value]) -> Mapper | None:
    hints = get_type_hints(kind)
    names = [name for name in kind.__struct_fields__ if _may_hold_text(hints[name])]
    if not names:
        return None
    of_provider = _OF_PROVIDERS.get(kind)

    def map_fields(value: Any, change: Change) -> Any:
        least_chars = LEAST_SECRET_CHARS if change is redact_secrets else 1
        changed: dict[str, Any] = {}
        for name in names:
            content = getattr(value, name)
            if not content:
                continue
            content_type = content.__class__
            if content_type is str:
                if len(content) < least_chars:
                    continue
                mapped = map_texts(content, change) if _ready else change(content)
            else:
                mapper = _map_providers if name == of_provider else _mapper(content_type)
                if mapper is None:
                    continue
                is_reused = _ready and mapper is not _map_providers
                mapped = map_texts(content, change) if is_reused else mapper(content, change)
            if mapped is not content:
                changed[name] = mapped
        if kind is CallResult and "output" in changed:
            changed["logprobs"] = ()  # its tokens would reveal what was redacted
        return replace(value, **changed) if changed else value

    return map_fields


def _may_hold_text(hint: Any) -> bool:
    """Return whether a field with the type `hint` may contain a text. A number or a literal cannot."""
    if get_origin(hint) in (Union, UnionType):
        return any(map(_may_hold_text, get_args(hint)))
    if get_origin(hint) is Literal:
        return False
    if not isinstance(hint, type):
        return True
    return not issubclass(hint, int | float | Decimal | Enum | NoneType)
