"""Parsing of JSON bodies, and the fields that dialects share."""

import re
from collections.abc import Callable, Coroutine, Iterable, Sequence
from itertools import dropwhile
from typing import Annotated, Any, Literal, TypeVar, cast

from fastapi import Request, Response
from fastapi.routing import APIRoute
from msgspec.structs import replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails, from_json

from conductor.errors import BadTask, quote
from conductor.model.characters import with_whole_escapes
from conductor.model.messages import CacheMark, Message, Tool, cache_marks
from conductor.model.operation import PromptCache
from serving.api.authentication import caller_of
from serving.edge.checks import too_large
from serving.edge.middleware import LARGE_BYTES
from serving.errors import explain_fault
from serving.redaction.personal import name_on_record
from serving.redaction.slices import turn
from serving.workers.cache_marks import ANTHROPIC_MARKS, MOST_MARKS

Body = TypeVar("Body", bound=BaseModel)
MOST_STRINGS, MOST_BRACKETS, MOST_VALUES = 200_000, 500_000, 300_000
"""Limits for one body, counted before it is parsed.

Strings include field names, and brackets include those in text. Values are what commas outside of strings
separate. A body with a million tokens of text reaches a tenth of these counts. Ten times as many would block
the event loop for too long.
"""
_NO_MARKS = bytes(set(range(256)) - set(b'\\"{[,'))
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""Pattern of a JSON string. The last string of a body may be unterminated."""
MOST_FAULTS = 1_000
"""Maximum validation errors among which to find the one to report. Listing them takes time."""
MOST_NOTED = 16
"""Maximum number of ignored fields that the record lists by name."""
NEUTRAL: tuple[object, ...] = (None, {}, [], False)
"""Values that request nothing."""
Remedy = Callable[[str, object], str]
"""Returns advice about an invalid field and its value, with a leading space, or ""."""


class ExtraFields(BaseModel):
    """Base of bodies that may have unknown fields. These fields are ignored, and the record lists them."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    @property
    def _unread(self) -> dict[str, Any]:
        """Fields without an effect."""
        return self.model_extra or {}

    @property
    def extras(self) -> tuple[str, ...]:
        """One line per ignored field. It never has the value, which may be personal data."""
        names = [name for name, value in self._unread.items() if value not in NEUTRAL]
        rest = len(names) - MOST_NOTED
        return (
            *(
                f"{quote(name)} was ignored, because it has no effect on this server."
                for name in names[:MOST_NOTED]
            ),
            *(
                [f"{rest} more fields were ignored, because they have no effect on this server."]
                if rest > 0
                else ()
            ),
        )


def give_no_remedy(param: str, value: object) -> str:
    """Return "". This is the `Remedy` of bodies for which no advice is known."""
    return ""


async def body_in_turn(request: Request) -> bytes:
    """Return the body of a request. A large one is returned in a turn of its team (`turn`), so parse it before the
    next `await`.
    """
    body = await request.body()
    if len(body) > LARGE_BYTES:
        async with turn(caller_of(request).account):
            pass
    return body


def read_body(kind: type[Body], body: bytes, remedy: Remedy = give_no_remedy) -> Body:
    """Parse `body` as a `kind`. The BadTask names the field and says what it may be."""
    check_parts(body)
    body = with_whole_escapes(body)
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        if exc.error_count() > MOST_FAULTS:
            message = f"The body has more than {MOST_FAULTS} unknown or invalid fields. Compare it with GET /v1/openapi.json."
            raise BadTask(message, param="body") from None
        faults = exc.errors(include_url=False, include_context=False)
        if faults[0]["type"] == "json_invalid":
            raise BadTask(_not_json(faults[0]["msg"]), param="body") from exc
        param, fault = innermost(faults, from_json(body))
        param = param or "body"
        raise BadTask(f"{explain_fault(param, fault)}.{remedy(param, fault['input'])}", param=param) from exc


def check_parts(body: bytes) -> None:
    """Check that a body does not have too many parts to parse, or raise BadTask."""
    PartCount().add(body)


class BoundedRoute(APIRoute):
    """Route class with declared bodies, whose parts are counted before FastAPI parses them."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return FastAPI's handler, with the bound checked first."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            check_parts(await body_in_turn(request))
            return await handle(request)

        return handle_bounded


class PartCount:
    """Counts the parts of all JSON in a request, including the JSON inside its compaction items.

    Args:
        max_bytes: maximum size of the JSON inside these items, unpacked and together.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._max_bytes = self.left_bytes = max_bytes
        self._strings = self._brackets = self._values = 0

    def add_unpacked(self, data: bytes) -> None:
        """Count the JSON inside an item before it is parsed. Raise TooLarge or BadTask beyond a limit."""
        self.left_bytes -= len(data)
        if self.left_bytes < 0:
            raise too_large(self._max_bytes)
        self.add(data)

    def add(self, body: bytes) -> None:
        """Count the parts of `body` before it is parsed. Raise BadTask beyond a limit."""
        marks = body.translate(None, _NO_MARKS)  # one pass instead of one for each mark
        n_escaped = body.count(b'\\"') if b"\\" in marks else 0
        self._strings += (marks.count(b'"') - n_escaped) // 2
        self._brackets += marks.count(b"{") + marks.count(b"[")
        has_many = self._strings > MOST_STRINGS or self._brackets > MOST_BRACKETS
        commas = 0 if has_many else marks.count(b",")
        if self._values + commas > MOST_VALUES:
            commas = _STRING.sub(b"", body).count(b",")
        self._values += commas
        if has_many or self._values > MOST_VALUES:
            raise BadTask(
                f"The body has more than {MOST_STRINGS} strings, {MOST_BRACKETS} objects and arrays, or {MOST_VALUES} values. "
                "Split it into several requests.",
                param="body",
            )


def _not_json(reason: str) -> str:
    """Return the message for a body that cannot be parsed, from the parser's own."""
    if "recursion limit" in reason:
        return "The body is nested too deeply. At most 200 levels of arrays and objects are allowed, including those in schemas."
    return f"The body is not valid JSON: {reason}."


def innermost(faults: list[ErrorDetails], body: object) -> tuple[str, ErrorDetails]:
    """Return the first error with its place. In a union, it is the error of the best matching type."""
    placed = [(place(fault, body), fault) for fault in faults]
    first = placed[0][0]
    near = (each for each in placed if each[0].startswith(first))
    return max(near, key=lambda each: len(each[1]["loc"]))


def place(fault: ErrorDetails, body: object) -> str:
    """Return the place of an error as the client wrote it, such as `messages[0].content`. Pydantic's location
    also has the names of the types that it tried, which `body` does not have.
    """
    path, here, last = "", body, len(fault["loc"]) - 1
    for index, part in enumerate(fault["loc"]):
        if isinstance(part, int):
            path += f"[{part}]"
            here = cast(list[Any], here)[part] if isinstance(here, list) else None
        elif isinstance(here, dict):
            fields = cast(dict[str, Any], here)
            if _is_sort(fault["loc"][index : index + 2], fields):
                continue
            if part in fields or (index == last and fault["type"] == "missing"):
                name = part if part.isprintable() else repr(part)[1:-1]
                path += f".{name}" if path else name
                here = fields.get(part)
    return path


def _is_sort(parts: tuple[int | str, ...], fields: dict[str, Any]) -> bool:
    """Return whether the first part names a type and not a field. A text part, for example, has the type
    `text` and also a field `text`; in a type's location, the next part is a field beside it.
    """
    return (
        len(parts) > 1 and parts[1] in fields and not isinstance(fields.get(str(parts[0]), {}), dict | list)
    )


class LenientModel(BaseModel):
    """Base of models that ignore unknown fields, such as those of betas."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


def _or_blank(value: Any) -> Any:
    return "" if value is None else value


NullableText = Annotated[str, BeforeValidator(_or_blank)]
"""Text. null means the same as no text."""


class CacheControl(LenientModel):
    """Anthropic's mark for the end of a cached prefix. Clients send it in other dialects too."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None


class CacheBreakpoint(LenientModel):
    """OpenAI's mark for the end of a cached prefix."""

    mode: Literal["explicit"] = "explicit"
    ttl: Literal["30m", "12h"] | None = None


class MarkFields(LenientModel):
    """Fields that mark a part of a message as the end of a cached prefix."""

    cache_control: CacheControl | None = None
    prompt_cache_breakpoint: CacheBreakpoint | None = None

    @property
    def mark(self) -> CacheMark:
        if self.cache_control is not None:
            return self.cache_control.ttl or "ephemeral"
        if self.prompt_cache_breakpoint is not None:
            return self.prompt_cache_breakpoint.ttl or "explicit"
        return ""


def check_marks(messages: Iterable[Message], tools: Iterable[Tool]) -> None:
    """Check that the `cache_control` in a request are as Anthropic's API accepts them: not too many, and none has a
    longer lifetime than one before it. The API reads system messages before the others.
    """
    in_order = sorted(messages, key=lambda message: message.role != "system")
    marks = [mark for mark in cache_marks(in_order, tools) if mark in ANTHROPIC_MARKS]
    if len(marks) > MOST_MARKS:
        message = f"A maximum of {MOST_MARKS} blocks with cache_control may be provided. Found {len(marks)}."  # as Anthropic's
        raise BadTask(message, param="cache_control")
    if "1h" in dropwhile(lambda mark: mark == "1h", marks):
        message = (
            "cache_control.ttl: '1h' must not come after '5m', which is the default. The order is tools, system messages, "
            "other messages. Use '1h' for the earlier blocks too, or '5m' for the later ones."
        )
        raise BadTask(message, param="cache_control.ttl")


class CacheOptions(LenientModel):
    """OpenAI's `prompt_cache_options`."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m"] | None = None


class CacheFields(LenientModel):
    """OpenAI's fields for prompt caching."""

    prompt_cache_key: str | None = Field(default=None, max_length=1024)
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None

    @property
    def prompt_cache(self) -> PromptCache | None:
        options = self.prompt_cache_options or CacheOptions()
        retention = (self.prompt_cache_retention or "").replace("-", "_")
        options_sent = PromptCache(
            name_on_record(self.prompt_cache_key or ""), retention, options.mode or "", options.ttl or ""
        )
        return None if options_sent == PromptCache() else options_sent

    @property
    def conversation_name(self) -> str:
        """See `ApiRequest.conversation_name`."""
        return f"key:{self.prompt_cache_key}" if self.prompt_cache_key else ""


def mark_last(messages: Sequence[Message], mark: CacheMark) -> tuple[Message, ...]:
    """Return `messages` with `mark` on the last part of the last one, if that has none."""
    if not mark or not messages or not messages[-1].parts or messages[-1].parts[-1].cache:
        return tuple(messages)
    *parts, last = messages[-1].parts
    marked_part: Any = replace(last, cache=mark)
    return (*messages[:-1], replace(messages[-1], parts=(*parts, marked_part)))
