"""Failures of Responses before a response has begun: what its clients do next decides the status.

Codex asks 30 times after a 5xx and 6 times after most else, whatever headers say; once after a 400, and once after
a 429 whose code is `insufficient_quota`. So what is not to be asked again is one of these two.
"""

from typing import Any

from conductor.errors import BadTask, BudgetExceeded, PodiumError, Unauthenticated
from conductor.model.failure import Failure
from serving import errors
from serving.api.dialects.chat.encoding import chat_error_body

QUOTA = "insufficient_quota"
TOO_MANY = 429


def error_body(error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
    """OpenAI's shape."""
    body = chat_error_body(error, workflow_id)
    kind = error.error_class if isinstance(error, Failure) else type(error)
    if issubclass(kind, BudgetExceeded):
        body["error"] |= {"type": QUOTA, "code": QUOTA}
    return body


def status(error: PodiumError, *, is_paid: bool) -> int:
    """See `Dialect.status`."""
    if isinstance(error, BudgetExceeded):
        return TOO_MANY
    if isinstance(error, BadTask | Unauthenticated):
        return errors.row(error).status
    return errors.FINAL if is_paid or not error.retryable else errors.row(error).status
