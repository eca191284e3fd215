"""Read a body as JSON with the fields that dialects share."""

import re
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, cast

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from conductor.errors import BadTask, quote
from conductor.model.characters import with_whole_escapes
from conductor.model.messages import CacheMark, Message
from conductor.model.operation import PromptCache

Body = TypeVar("Body", bound=BaseModel)
MOST_STRINGS, MOST_BRACKETS, MOST_VALUES = 200_000, 500_000, 300_000
"""In one body, names of fields and braces inside text included. What says a million tokens has a tenth of them; ten times
as many would keep everybody else waiting while they are read. Values are what commas outside of strings part: an array of
numbers has no strings.
"""
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A body's last one may have no end."""
MOST_FAULTS = 1_000
"""In one body that are looked through for the one to tell; the parser's list of them takes its time for each."""
MOST_NOTED = 16
"""Of the fields of one body that are noted by name."""
NEUTRAL: tuple[object, ...] = (None, {}, [], False)
"""Values that ask for nothing."""
Remedy = Callable[[str, object], str]
"""A sentence more for a place and what was given there, with a space before it; empty: none."""


class ExtraFields(BaseModel):
    """A body with fields that nobody here knows, or that are known to change no answer: they are taken, for the
    record to name them.
    """

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    @property
    def extras(self) -> tuple[str, ...]:
        """A line for each that was sent. Never its value: that may be about a person."""
        sent = [name for name, value in (self.model_extra or {}).items() if value not in NEUTRAL]
        rest = len(sent) - MOST_NOTED
        return (
            *(f"{quote(name)} has no effect here." for name in sent[:MOST_NOTED]),
            *([f"{rest} more fields have no effect here."] if rest > 0 else ()),
        )


def give_no_remedy(param: str, given: object) -> str:
    """A `Remedy` for where none is known."""
    return ""


def read_body(kind: type[Body], body: bytes, remedy: Remedy = give_no_remedy) -> Body:
    """`body` as a `kind`.

    Raises:
        BadTask: naming the field, and what it may be.
    """
    check_parts(body)
    body = with_whole_escapes(body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        if exc.error_count() > MOST_FAULTS:
            message = f"More than {MOST_FAULTS} fields of the body are none of those that are taken here, or cannot be so."
            raise BadTask(f"{message} Compare it with GET /v1/openapi.json.", param="body") from None
        faults = exc.errors(include_url=False, include_context=False)
        if faults[0]["type"] == "json_invalid":
            raise BadTask(_not_json(faults[0]["msg"]), param="body") from exc
        param, fault = innermost(faults, from_json(body))
        param = param or "body"
        said = (
            "is not a field of it"
            if fault["type"] == "extra_forbidden"
            else fault["msg"].removeprefix("Value error, ")
        )
        raise BadTask(f"{param}: {said}.{remedy(param, fault['input'])}", param=param) from exc


def check_parts(body: bytes) -> None:
    """Whether the body has no more parts than can be read at once.

    Raises:
        BadTask: it has.
    """
    PartCount().add(body)


class PartCount:
    """The parts of all JSON that one request brings, what is packed in its items included."""

    def __init__(self) -> None:
        self._strings = self._brackets = self._values = 0

    def add(self, body: bytes) -> None:
        """Count the parts of `body` before it is parsed.

        Raises:
            BadTask: together with those before they are more than can be read at once.
        """
        self._strings += (body.count(b'"') - body.count(b'\\"')) // 2
        self._brackets += body.count(b"{") + body.count(b"[")
        has_many = self._strings > MOST_STRINGS or self._brackets > MOST_BRACKETS
        commas = 0 if has_many else body.count(b",")
        if self._values + commas > MOST_VALUES:
            commas = _STRING.sub(b"", body).count(b",")
        self._values += commas
        if has_many or self._values > MOST_VALUES:
            raise BadTask(
                f"The body has too many parts: more than {MOST_STRINGS} strings, {MOST_BRACKETS} objects and arrays, or "
                f"{MOST_VALUES} values. Send less at once.",
                param="body",
            )


def _not_json(said: str) -> str:
    """What is wrong with a body that cannot be parsed, in the parser's words."""
    if "recursion limit" in said:
        return "The body is nested too deeply: more than 200 arrays and objects inside each other, a schema's included."
    return f"The body is not JSON: {said}."


def innermost(faults: list[ErrorDetails], body: object) -> tuple[str, ErrorDetails]:
    """The first fault, with its place; where a field may be of several sorts, that of the sort the caller came
    nearest to.
    """
    placed = [(place(fault, body), fault) for fault in faults]
    first = placed[0][0]
    near = (each for each in placed if each[0].startswith(first))
    return max(near, key=lambda each: len(each[1]["loc"]))


def place(fault: ErrorDetails, body: object) -> str:
    """A fault's location as the caller writes it, `messages[0].content`: the names of the sorts that were tried,
    which `body` does not have, are left out.
    """
    written, here, last = "", body, len(fault["loc"]) - 1
    for index, part in enumerate(fault["loc"]):
        if isinstance(part, int):
            written += f"[{part}]"
            here = cast(list[Any], here)[part] if isinstance(here, list) else None
        elif isinstance(here, dict):
            fields = cast(dict[str, Any], here)
            if _is_sort(fault["loc"][index : index + 2], fields):
                continue
            if part in fields or (index == last and fault["type"] == "missing"):
                name = part if part.isprintable() else repr(part)[1:-1]
                written += f".{name}" if written else name
                here = fields.get(part)
    return written


def _is_sort(parts: tuple[int | str, ...], fields: dict[str, Any]) -> bool:
    """Whether the first part names the sort that `fields` are of, as a text part is of the sort `text` and has a field of that
    name: then the next part is a field beside it.
    """
    return (
        len(parts) > 1 and parts[1] in fields and not isinstance(fields.get(str(parts[0]), {}), dict | list)
    )


class _Ignoring(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class CacheControl(_Ignoring):
    """Anthropic's mark; other clients send it too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheBreakpoint(_Ignoring):
    """OpenAI's mark."""

    mode: Literal["explicit"] = "explicit"
    ttl: Literal["30m", "12h"] | None = None


class MarkFields(_Ignoring):
    """The fields of a part that ends a cached prefix."""

    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @property
    def mark(self) -> CacheMark:
        """The mark, or "" if there is none."""
        if self.cache_control is not None:
            return self.cache_control.ttl or "ephemeral"
        if self.prompt_cache_breakpoint is not None:
            return self.prompt_cache_breakpoint.ttl or "explicit"
        return ""


class CacheOptions(_Ignoring):
    """OpenAI's `prompt_cache_options`."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class CacheFields(_Ignoring):
    """OpenAI's fields of a request."""

    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def prompt_cache(self) -> PromptCache | None:
        """The options, or None if no field is set."""
        options = self.prompt_cache_options or CacheOptions()
        retention = (self.prompt_cache_retention or "").replace("-", "_")
        options_sent = PromptCache(
            self.prompt_cache_key or "", retention, options.mode or "", options.ttl or ""
        )
        return None if options_sent == PromptCache() else options_sent


def mark_last(messages: Sequence[Message], mark: CacheMark) -> tuple[Message, ...]:
    """Return `messages` with `mark` on the last part of the last one, if it has none yet."""
    if not mark or not messages or not messages[-1].parts or messages[-1].parts[-1].cache:
        return tuple(messages)
    *parts, last = messages[-1].parts
    changed: Any = replace(last, cache=mark)
    return (*messages[:-1], replace(messages[-1], parts=(*parts, changed)))
