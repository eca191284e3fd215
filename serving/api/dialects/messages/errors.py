"""Errors in Anthropic's format."""

import uuid
from typing import Any

from conductor.errors import ContextOverflow, PodiumError
from conductor.model.failure import Failure
from serving import errors
from serving.api.error_json import error_json

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types by HTTP status. All other errors are an `api_error`."""
TOO_LONG = "prompt is too long: "
"""Beginning of Anthropic's message that makes agents shorten their conversation."""


def messages_error_body(error: PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """Return the body of a failed response, which is also the last event of a failed stream."""
    shape, row = error_json(error, workflow_id), errors.row(error)
    if row is errors.TABLE[ContextOverflow]:
        shape["message"] = TOO_LONG + shape["message"]
    return {
        "type": "error",
        "error": shape | {"type": TYPES.get(row.status, "api_error")},
        "request_id": workflow_id or f"req_{uuid.uuid4().hex}",
    }
