"""JSON Schemas for answers, parsed for every dialect."""

import re
from collections.abc import Mapping
from typing import Any, cast

from conductor.errors import BadTask, quote
from conductor.model.call import AnswerFormat
from serving.schemas.limits import SchemaFault, check_schema, is_object

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""OpenAI's rule for names."""
MOST_DESCRIPTION_CHARS = 10_000
ANY_OBJECT = AnswerFormat()
"""Format for OpenAI's `json_object`."""


def read_schema(
    schema: object,
    name: str | None,
    strict: bool | None,
    param: str,
    *,
    description: str | None = None,
    any_root: bool = False,
) -> AnswerFormat:
    """Return the answer format of an untrusted `schema`. `param` is the request field that the BadTask names.

    The root of a strict schema must be an object, as OpenAI requires, unless `any_root`.
    """
    if name is not None and not NAME.fullmatch(name):
        message = f"{param}.name must have 1 to 64 letters, digits, underscores or dashes, not {quote(name)}."
        raise BadTask(message, param=f"{param}.name")
    if len(description or "") > MOST_DESCRIPTION_CHARS:
        message = f"{param}.description must have at most {MOST_DESCRIPTION_CHARS:,} characters."
        raise BadTask(message, param=f"{param}.description")
    place = f"{param}.schema"
    if not isinstance(schema, Mapping):
        raise BadTask(f"{place} must be a JSON Schema object.", param=place)
    json_schema = cast(Mapping[str, Any], schema)
    try:
        check_schema(json_schema)
    except SchemaFault as exc:
        at = f"{place}.{exc.place}" if exc.place else place
        raise BadTask(f"{at} {exc.why}.", param=at) from exc
    if strict and not any_root and not is_object(json_schema):
        message = f'{place}: the root of a strict schema must be an object. Add "type": "object".'
        raise BadTask(message, param=place)
    return AnswerFormat(json_schema, name or "answer", description or "", bool(strict))
