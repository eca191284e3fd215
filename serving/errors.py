"""HTTP status, type, code and retry headers of each error, and the sentence for a field that pydantic rejects.

The error body depends on the client's API dialect: see `serving/api/dialect.py`.
"""

import math
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from conductor import errors
from conductor.errors import quote
from conductor.model.failure import Failure
from serving.health import MAX_RETRY_AFTER_S

UNAUTHORIZED = 401
FINAL = 400
"""A status that clients do not retry."""


class Row(NamedTuple):
    """HTTP status of an error, OpenAI's `type`, Podium's `code`, and a remedy for docs/errors.md."""

    status: int
    type: str
    code: str
    remedy: str


TABLE: Mapping[type[errors.PodiumError], Row] = {
    errors.PodiumError: Row(500, "server_error", "internal_error", "Report this as a bug. The log contains the traceback."),
    errors.BadTask: Row(400, "invalid_request_error", "bad_task", "Correct the field that `param` names."),
    errors.UnknownName: Row(404, "invalid_request_error", "not_found", "Check the id, and use a key of the team that owns the object."),
    errors.UnknownModel: Row(404, "invalid_request_error", "model_not_found", "Use a name that `GET /v1/models` lists for the same key. If the name should be allowed, check `podium keys policy` and `podium teams policy`."),
    errors.TooLarge: Row(413, "invalid_request_error", "too_large", "Send a smaller request, or raise the [limit](operations/request-limits.md) that the message names."),
    errors.NotTheSame: Row(422, "invalid_request_error", "idempotency_key_reused", "Send each different request with a new `Idempotency-Key`."),
    errors.TooSlow: Row(408, "invalid_request_error", "request_timeout", "Send the request again over a faster connection."),
    errors.WrongContentType: Row(415, "invalid_request_error", "wrong_content_type", "Send JSON with `content-type: application/json`."),
    errors.NotAllowed: Row(403, "permission_error", "not_allowed", "Check the key's scopes and [policy](policies.md), and the request's `Host` and `Origin`."),
    errors.Unauthenticated: Row(401, "authentication_error", "invalid_api_key", "Send a valid key. The message says what is wrong."),
    errors.NoPlan: Row(502, "upstream_error", "no_plan", "Read the rejected plans in the run's record, and the server's log."),
    errors.InvalidPlan: Row(502, "upstream_error", "invalid_plan", "Read the plan and the reason in the run's record. Choose a stronger conductor, or set `conductor.fallback`."),
    errors.WorkerError: Row(502, "upstream_error", "worker_failed", "Read the reason in the run's record and in the server's log."),
    errors.WorkerUnavailable: Row(502, "upstream_error", "worker_unavailable", "Check the provider or engine, and the network. Give the worker [fallbacks](operations/worker-failures.md#fallbacks)."),
    errors.WorkerBusy: Row(503, "upstream_error", "worker_busy", "Raise the provider's quota, or give the worker [fallbacks](operations/worker-failures.md#fallbacks)."),
    errors.LineTooLong: Row(429, "rate_limit_error", "line_too_long", "Add capacity, or raise `max_wait_s` of the worker ([overload](operations/overload.md))."),
    errors.WorkerRefused: Row(502, "upstream_error", "worker_refused", "Read the reason in the run's record, and correct its cause, such as the key, the credit or the model's name."),
    errors.ContentFiltered: Row(400, "invalid_request_error", "content_filter", "Change the prompt, or set `on_content_filter` of the worker."),
    errors.QuestionRejected: Row(400, "invalid_request_error", "question_rejected", "Ask another worker, or give this one [fallbacks](operations/worker-failures.md#fallbacks)."),
    errors.AnswerInvalid: Row(400, "upstream_error", "answer_invalid", "Simplify the [format](structured-output.md), or use a stronger worker."),
    errors.ContextOverflow: Row(400, "invalid_request_error", "context_length_exceeded", "Shorten the prompt, or add a worker with a longer context. If the record says that the prompt exceeds the provider's tokens per minute, raise that quota."),
    errors.BudgetExceeded: Row(402, "budget_error", "budget_exceeded", "Raise the limit that the message names. It is a limit of the request, the model, the key or the team ([budgets](budgets.md))."),
    errors.DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded", "Raise `deadline_s` of the request or the model, or allow fewer steps."),
    errors.Cancelled: Row(409, "invalid_request_error", "cancelled", "Send a new request if the answer is still needed."),
    errors.Interrupted: Row(503, "server_error", "interrupted", "Send the request again."),
    errors.StoreUnavailable: Row(503, "server_error", "store_unavailable", "Check that the [store](operations/store.md#outages) is running and reachable."),
    errors.Overloaded: Row(429, "rate_limit_error", "overloaded", "Add capacity ([overload](operations/overload.md)). The alerts `PodiumFull` and `WorkerQueue` warn you of this."),
    errors.RateLimited: Row(429, "rate_limit_error", "rate_limit_exceeded", "Send fewer requests, or raise the rates of the key or team ([policies](policies.md))."),
}  # fmt: skip


def row(error: errors.PodiumError | Failure) -> Row:
    """Return the table row of the error's most specific class."""
    error_class = error.error_class if isinstance(error, Failure) else type(error)
    return next(TABLE[kind] for kind in error_class.__mro__ if kind in TABLE)


def clients_retry(status: int) -> bool:
    """Return whether clients retry on their own after this HTTP status."""
    return status >= 500 or status in (408, 409, 429)


def retry_after_s(failure: Failure) -> float | None:
    """Return the seconds until a retry, or None. A provider may name them, so they are limited to
    `MAX_RETRY_AFTER_S`.
    """
    wait_s = failure.get("retry_after_s")
    if not isinstance(wait_s, int | float) or math.isnan(wait_s):
        return None
    return min(max(float(wait_s), 0.0), MAX_RETRY_AFTER_S)


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


TYPES = {
    "string": "a string",
    "int": "an integer",
    "float": "a number",
    "decimal": "a number",
    "bool": "true or false",
    "list": "an array",
    "dict": "an object",
    "model": "an object",
}
"""Names of JSON types, by the first word of pydantic's type of an error."""
VERBS = ("must ", "is ", "has ", "requires ", "contains ", "cannot ")
"""Beginnings of a validator's message that lacks its subject, the field."""
_SHOULD = re.compile(r"^[A-Z][A-Za-z ]{0,30}? should ")
_UNKNOWN_TAG = re.compile(
    r"^Input tag '(.*)' found using '(\w+)' does not match any of the expected tags: (.*)$", re.DOTALL
)
_NO_TAG = re.compile(r"^Unable to extract tag using discriminator '(\w+)'$")


def explain_fault(place: str, fault: Mapping[str, Any]) -> str:
    """Explain pydantic's error at `place` as a sentence without its period, such as "temperature must be at
    least 0".
    """
    message = str(fault["msg"]).removeprefix("Value error, ")
    if fault["type"] == "missing":
        return f"{place} is required"
    if fault["type"] == "extra_forbidden":
        return f"{place} is not a known field"
    sort, _, rest = str(fault["type"]).partition("_")
    if sort in TYPES and rest in ("type", "parsing", "attributes_type", "from_float"):
        return f"{place} must be {TYPES[sort]}"
    if unknown := _UNKNOWN_TAG.match(message):
        return f"{place}.{unknown[2]} must be one of {unknown[3]}, not {quote(unknown[1])}"
    if absent := _NO_TAG.match(message):
        return f"{place}.{absent[1]} is required"
    message = _SHOULD.sub("must ", message).replace(" after validation, not ", ", not ")
    message = message.replace("must match pattern ", "must match the pattern ")
    message = message.partition(", unable to parse ")[0]
    message = message.replace(" greater than or equal to ", " at least ").replace(
        " less than or equal to ", " at most "
    )
    return f"{place} {message}" if message.startswith(VERBS) else f"{place}: {message}"
