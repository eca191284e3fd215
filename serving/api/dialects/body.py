"""A body as what its dialect's model says, or the error that names the field."""

from typing import TypeVar

from pydantic import BaseModel, ValidationError

from conductor.errors import BadTask
from serving.api.dialects.chat_schema import place

Body = TypeVar("Body", bound=BaseModel)


def read_body(kind: type[Body], body: bytes) -> Body:
    """The request in `body`.

    Raises:
        BadTask: naming the field, in the caller's spelling, and what it may be.
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as exc:
        fault = exc.errors(include_url=False, include_context=False)[0]
        if fault["type"] == "json_invalid":
            raise BadTask(f"The body is not JSON: {fault['msg']}.", param="body") from exc
        param = place(fault["loc"]) or "body"
        said = fault["msg"].removeprefix("Value error, ")
        raise BadTask(f"{param}: {said}.", param=param) from exc
