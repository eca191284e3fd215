"""A client's schema of the answer, read for every dialect."""

import re
from collections.abc import Mapping
from typing import Any, cast

from conductor.errors import BadTask, quote
from conductor.model.call import AnswerFormat
from serving.schemas.limits import SchemaFault, check_schema, is_object

NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
"""OpenAI's rule."""
MOST_DESCRIPTION_CHARS = 10_000
ANY_OBJECT = AnswerFormat()
"""OpenAI's `json_object`."""


def read_schema(
    schema: object,
    name: str | None,
    strict: bool | None,
    param: str,
    *,
    description: str | None = None,
    any_root: bool = False,
) -> AnswerFormat:
    """What a client wants the answer to be.

    Args:
        schema: as it came; untrusted.
        name: of it; None where the dialect has none.
        strict: None means False, as with OpenAI.
        param: where it came, for errors: what holds `schema` and `name`, such as `response_format.json_schema`.
        description: of it, for the model.
        any_root: a strict schema need not ask for an object; OpenAI's must.

    Raises:
        BadTask: naming the field; it is not a schema, or one that is not taken.
    """
    if name is not None and not NAME.fullmatch(name):
        message = f"{param}.name: {quote(name)} is not 1 to 64 letters, digits, underscores and dashes."
        raise BadTask(message, param=f"{param}.name")
    if len(description or "") > MOST_DESCRIPTION_CHARS:
        message = f"{param}.description: at most {MOST_DESCRIPTION_CHARS:,} characters."
        raise BadTask(message, param=f"{param}.description")
    place = f"{param}.schema"
    if not isinstance(schema, Mapping):
        raise BadTask(f"{place}: send a JSON Schema, as an object.", param=place)
    known = cast(Mapping[str, Any], schema)
    try:
        check_schema(known)
    except SchemaFault as exc:
        at = f"{place}.{exc.place}" if exc.place else place
        raise BadTask(f"{at} {exc.why}.", param=at) from exc
    if strict and not any_root and not is_object(known):
        message = f'{place}: the root of a strict schema is an object: write "type": "object" there.'
        raise BadTask(message, param=place)
    return AnswerFormat(known, name or "answer", description or "", bool(strict))
