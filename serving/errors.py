"""Errors to HTTP: the one table, and OpenAI's error shape.

An error's `detail` is for operators: it is in `record_body`, which records use, and never in `body`, which
answers use.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from conductor import errors
from conductor.model.failure import Attempt, Failure


class Row(NamedTuple):
    """How an error is told: HTTP status, OpenAI's `type`, our `code`."""

    status: int
    type: str
    code: str


TABLE: Mapping[type[errors.PodiumError], Row] = {
    errors.PodiumError: Row(500, "server_error", "internal_error"),
    errors.BadTask: Row(400, "invalid_request_error", "bad_task"),
    errors.UnknownName: Row(404, "invalid_request_error", "not_found"),
    errors.TooLarge: Row(413, "invalid_request_error", "too_large"),
    errors.TooSlow: Row(408, "invalid_request_error", "request_timeout"),
    errors.WrongContentType: Row(415, "invalid_request_error", "wrong_content_type"),
    errors.NotAllowed: Row(403, "permission_error", "not_allowed"),
    errors.NoPlan: Row(502, "upstream_error", "no_plan"),
    errors.InvalidPlan: Row(502, "upstream_error", "invalid_plan"),
    errors.WorkerError: Row(502, "upstream_error", "worker_failed"),
    errors.WorkerUnavailable: Row(502, "upstream_error", "worker_unavailable"),
    errors.WorkerBusy: Row(503, "upstream_error", "worker_busy"),
    errors.WorkerRefused: Row(502, "upstream_error", "worker_refused"),
    errors.ContextOverflow: Row(400, "invalid_request_error", "context_length_exceeded"),
    errors.BudgetExceeded: Row(402, "budget_error", "budget_exceeded"),
    errors.DeadlineExceeded: Row(504, "timeout_error", "deadline_exceeded"),
    errors.Interrupted: Row(503, "server_error", "interrupted"),
    errors.Overloaded: Row(429, "rate_limit_error", "overloaded"),
}


def row(error: errors.PodiumError | Failure) -> Row:
    """The row of the most specific class."""
    error_class = error.error_class if isinstance(error, Failure) else type(error)
    return next(TABLE[kind] for kind in error_class.__mro__ if kind in TABLE)


def body(error: errors.PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """`error` in OpenAI's shape; what only we know is under `podium`."""
    failure, told = _failure(error), row(error)
    facts: dict[str, Any] = {
        name: value
        for name in ("reason", "worker", "step", "spent", "held", "limit", "deadline_s", "retry_after_s")
        if (value := failure.get(name)) not in (None, "")
    }
    attempts = [attempt_json(each) for each in failure.attempts]
    podium = (
        facts
        | ({"attempts": attempts} if attempts else {})
        | ({"workflow_id": workflow_id} if workflow_id else {})
    )
    shape: dict[str, Any] = {
        "message": failure.message,
        "type": told.type,
        "param": failure.get("param"),
        "code": told.code,
    }
    return {"error": shape | ({"podium": podium} if podium else {})}


def record_body(error: errors.PodiumError | Failure) -> dict[str, Any]:
    """What a record says of `error`: `body`, and what only operators may read."""
    failure, told = _failure(error), body(error)["error"]
    attempts = [attempt_json(each) | {"detail": each.detail} for each in failure.attempts]
    podium = told.get("podium", {}) | ({"attempts": attempts} if attempts else {})
    return told | {"detail": failure.detail} | ({"podium": podium} if podium else {})


def _failure(error: errors.PodiumError | Failure) -> Failure:
    return error if isinstance(error, Failure) else Failure.of(error)


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """A call that gave no answer and was followed by another, as callers are told of it."""
    return {
        "worker": attempt.worker,
        "error": attempt.error,
        "message": attempt.message,
        "waited_s": round(attempt.waited_s, 6),
        "took_s": None if attempt.took_s is None else round(attempt.took_s, 6),
        "outcome": attempt.outcome,
        "cost_usd": None if attempt.cost_usd is None else float(attempt.cost_usd),
    }


def headers(error: errors.PodiumError | Failure) -> dict[str, str]:
    """Whether asking again may help, and from when on.

    `x-should-retry` is what OpenAI's and Anthropic's SDKs obey before they look at the status: a refusal is
    a 502 like an outage, and what was paid for is not to be paid for three times. `Retry-After` is in whole
    seconds, at least one.
    """
    failure = _failure(error)
    retry_after_s = failure.get("retry_after_s")
    told = {"x-should-retry": "true" if failure.retryable else "false"}
    if isinstance(retry_after_s, int | float):
        told["retry-after"] = str(max(1, math.ceil(retry_after_s)))
    return told
