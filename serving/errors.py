"""Errors to HTTP: the one table, and OpenAI's error shape.

An error's `detail` is for operators: it is in `record_body`, which records use, and never in `body`, which answers use.
"""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from conductor import errors
from conductor.model.worker import Attempt


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
    errors.Overloaded: Row(429, "rate_limit_error", "overloaded"),
}


def row(error: errors.PodiumError) -> Row:
    """The row of the most specific class."""
    return next(TABLE[kind] for kind in type(error).__mro__ if kind in TABLE)


def body(error: errors.PodiumError, workflow_id: str | None = None) -> dict[str, Any]:
    """`error` in OpenAI's shape; what only we know is under `podium`."""
    told = row(error)
    facts: dict[str, Any] = {
        name: value for name in ("reason", "worker", "step", "spent", "held", "limit", "deadline_s", "retry_after_s")
        if (value := getattr(error, name, None)) not in (None, "")
    }  # fmt: skip
    attempts = [attempt_json(each) for each in getattr(error, "attempts", ())]
    podium = (
        facts
        | ({"attempts": attempts} if attempts else {})
        | ({"workflow_id": workflow_id} if workflow_id else {})
    )
    shape: dict[str, Any] = {
        "message": error.message,
        "type": told.type,
        "param": error.param,
        "code": told.code,
    }
    return {"error": shape | ({"podium": podium} if podium else {})}


def record_body(error: errors.PodiumError) -> dict[str, Any]:
    """What a record says of `error`: `body`, and what only operators may read."""
    told = body(error)["error"]
    attempts = [attempt_json(each) | {"detail": each.detail} for each in getattr(error, "attempts", ())]
    podium = told.get("podium", {}) | ({"attempts": attempts} if attempts else {})
    return told | {"detail": error.detail} | ({"podium": podium} if podium else {})


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """A failed call that was followed by another, as callers are told of it."""
    return {
        "worker": attempt.worker, "error": attempt.error, "message": attempt.message,
        "waited_s": round(attempt.waited_s, 6),
    }  # fmt: skip


def headers(error: errors.PodiumError) -> dict[str, str]:
    """Whether asking again may help, and from when on.

    `x-should-retry` is what OpenAI's and Anthropic's SDKs obey before they look at the status: a refusal is a 502 like an outage,
    and what was paid for is not to be paid for three times. `Retry-After` is in whole seconds, at least one.
    """
    retry_after_s = getattr(error, "retry_after_s", None)
    told = {"x-should-retry": "true" if error.retryable else "false"}
    if retry_after_s is not None:
        told["retry-after"] = str(max(1, math.ceil(retry_after_s)))
    return told
