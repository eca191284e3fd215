"""What a client wants the answer to be: JSON, or JSON that holds to a schema."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """JSON in place of any text. Only the answering step is bound by it.

    Args:
        schema: JSON Schema of the answer; None: any JSON object (OpenAI's `json_object`).
        name: of the schema, for providers that want one.
        description: of the schema, for the model.
        strict: an answer that does not hold to `schema` is an error, never a success.
    """

    schema: Mapping[str, Any] | None = field(default=None, hash=False)
    name: str = "answer"
    description: str = ""
    strict: bool = True
