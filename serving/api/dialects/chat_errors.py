"""OpenAI's shape of an error."""

from typing import Any

from conductor.errors import PodiumError
from conductor.model.failure import Failure
from serving.api.error_json import error_json


def chat_error_body(error: PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """The body of an answer that failed, and the last event of a stream that did."""
    return {"error": error_json(error, workflow_id)}
