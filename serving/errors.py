"""HTTP status, type, code and retry headers of each error.

The error body depends on the client's API dialect: see `serving/api/dialect.py`.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

from conductor import errors
from conductor.model.failure import Failure
from serving.health import MOST_ASKED_REST_S

UNAUTHORIZED = 401
FINAL = 400
"""A status that clients do not retry."""


class Row(NamedTuple):
    """HTTP status of an error, OpenAI's `type` and Podium's own `code`."""

    status: int
    type: str
    code: str


TABLE: Mapping[type[errors.PodiumError], Row] = {
    errors.PodiumError: Row(500, "server_error", "internal_error"),
    errors.BadTask: Row(400, "invalid_request_error", "bad_task"),
    errors.UnknownName: Row(404, "invalid_request_error", "not_found"),
    errors.UnknownModel: Row(404, "invalid_request_error", "model_not_found"),
    errors.TooLarge: Row(413, "invalid_request_error", "too_large"),
    errors.NotTheSame: Row(422, "invalid_request_error", "idempotency_key_reused"),
    errors.TooSlow: Row(408, "invalid_request_error", "request_timeout"),
    errors.WrongContentType: Row(415, "invalid_request_error", "wrong_content_type"),
    errors.NotAllowed: Row(403, "permission_error", "not_allowed"),
    errors.Unauthenticated: Row(401, "authentication_error", "invalid_api_key"),
    errors.NoPlan: Row(502, "upstream_error", "no_plan"),
    errors.InvalidPlan: Row(502, "upstream_error", "invalid_plan"),
    errors.WorkerError: Row(502, "upstream_error", "worker_failed"),
    errors.WorkerUnavailable: Row(502, "upstream_error", "worker_unavailable"),
    errors.WorkerBusy: Row(503, "upstream_error", "worker_busy"),
    errors.LineTooLong: Row(429, "rate_limit_error", "line_too_long"),
    errors.WorkerRefused: Row(502, "upstream_error", "worker_refused"),
    errors.ContentFiltered: Row(400, "invalid_request_error", "content_filter"),
    errors.AnswerInvalid: Row(400, "upstream_error", "answer_invalid"),
    errors.ContextOverflow: Row(400, "invalid_request_error", "context_length_exceeded"),
    errors.BudgetExceeded: Row(402, "budget_error", "budget_exceeded"),
    errors.DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded"),
    errors.Cancelled: Row(409, "invalid_request_error", "cancelled"),
    errors.Interrupted: Row(503, "server_error", "interrupted"),
    errors.StoreUnavailable: Row(503, "server_error", "store_unavailable"),
    errors.Overloaded: Row(429, "rate_limit_error", "overloaded"),
    errors.RateLimited: Row(429, "rate_limit_error", "rate_limit_exceeded"),
}


def row(error: errors.PodiumError | Failure) -> Row:
    """Return the table row of the error's most specific class."""
    error_class = error.error_class if isinstance(error, Failure) else type(error)
    return next(TABLE[kind] for kind in error_class.__mro__ if kind in TABLE)


def is_asked_again(status: int) -> bool:
    """Return whether clients retry on their own after this HTTP status."""
    return status >= 500 or status in (408, 409, 429)


def retry_after_s(failure: Failure) -> float | None:
    """Return after how many seconds the client should retry, or None if the failure does not say.

    The value may come from a provider or a plugin, so it is limited to 0 to `MOST_ASKED_REST_S`.
    """
    wait_s = failure.get("retry_after_s")
    if not isinstance(wait_s, int | float) or math.isnan(wait_s):
        return None
    return min(max(float(wait_s), 0.0), MOST_ASKED_REST_S)


def headers(error: errors.PodiumError | Failure) -> dict[str, str]:
    """Return the response headers of an error.

    - `x-should-retry`: OpenAI's and Anthropic's SDKs obey it before the status. A refusal is a 502 like an outage,
      and a retry would pay for the same call again.
    - `retry-after`: whole seconds, 1 to 300, if the failure names a time.
    - `www-authenticate`: `Bearer`, with status 401.
    """
    failure = error if isinstance(error, Failure) else Failure.of(error)
    wait_s = retry_after_s(failure)
    fields = {"x-should-retry": "true" if failure.retryable else "false"}
    if wait_s is not None:
        fields["retry-after"] = str(max(1, math.ceil(wait_s)))
    if row(failure).status == UNAUTHORIZED:
        fields["www-authenticate"] = "Bearer"
    return fields
