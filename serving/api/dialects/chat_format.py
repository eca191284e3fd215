"""OpenAI's `response_format`."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from conductor.errors import BadTask
from conductor.model.answer_format import AnswerFormat
from serving.api.answer_format import ANY_OBJECT, read_schema


class JsonSchema(BaseModel):
    """What a schema comes in."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    name: str
    schema_: Any = Field(default=None, alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's."""

    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


def read_format(given: ResponseFormat | None) -> AnswerFormat | None:
    """What the answer must be; None: any text.

    Raises:
        BadTask: naming the field.
    """
    if given is None or given.type == "text":
        return None
    if given.type == "json_object":
        return ANY_OBJECT
    param = "response_format.json_schema"
    schema = given.json_schema
    if schema is None:
        raise BadTask(f"{param}: send the schema there.", param=param)
    return read_schema(
        {} if schema.schema_ is None else schema.schema_,
        schema.name,
        schema.strict,
        param,
        description=schema.description,
    )
