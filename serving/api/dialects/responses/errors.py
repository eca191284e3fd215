"""Errors of Responses before a response has begun. Their status decides whether clients retry.

Whatever the headers, Codex retries 30 times after a 5xx and 6 times after most other errors. It retries only
once after a 400, or after a 429 with the code `insufficient_quota`. So an error that must not be retried gets
one of these two.
"""

from typing import Any

from conductor.errors import BadTask, BudgetExceeded, PodiumError, Unauthenticated
from conductor.model.failure import Failure
from serving import errors
from serving.api.dialects.chat.encoding import chat_error_body

QUOTA = "insufficient_quota"
TOO_MANY = 429


def error_body(error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
    """Return the body of an error in OpenAI's format."""
    body = chat_error_body(error, workflow_id)
    kind = error.error_class if isinstance(error, Failure) else type(error)
    if issubclass(kind, BudgetExceeded):
        body["error"] |= {"type": QUOTA, "code": QUOTA}
    return body


def status(error: PodiumError, *, is_paid: bool) -> int:
    """Return the HTTP status of an error; see `Dialect.status`."""
    if isinstance(error, BudgetExceeded):
        return TOO_MANY
    if isinstance(error, BadTask | Unauthenticated):
        return errors.row(error).status
    return errors.FINAL if is_paid or not error.retryable else errors.row(error).status
