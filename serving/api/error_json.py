"""JSON form of failures, in records and in responses.

The field `detail` is for operators. Records have it (`operator_json`), and responses never do (`error_json`).
"""

import re
from typing import Any

from msgspec.structs import replace

from conductor.errors import PodiumError
from conductor.model.failure import Attempt, Failure
from conductor.run.record import Record
from serving.errors import retry_after_s, row
from serving.sessions.deduplication import has_called

FACTS = ("reason", "worker", "step", "cost", "spent", "held", "limit", "deadline_s", "retry_after_s")

AGAIN = re.compile(r"(?<=\.) Try again(?: later| soon)?\.")
"""Pattern of the advice to retry in error messages. After a model was called, a retry would be billed again."""
PAID_AGAIN = " A new request is billed again."


def caller_failure(error: PodiumError | Failure, record: Record) -> Failure:
    """Return the failure of a run for its caller. If a model was called, a note says that a retry is billed."""
    failure = _failure(error)
    return replace(failure, message=AGAIN.sub(PAID_AGAIN, failure.message)) if has_called(record) else failure


def error_json(error: PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """Return an error as callers see it: the four fields of OpenAI's errors, and more details in `podium`."""
    failure, status = _failure(error), row(error)
    facts: dict[str, Any] = {name: value for name in FACTS if (value := failure.get(name)) not in (None, "")}
    if "retry_after_s" in facts:
        facts["retry_after_s"] = retry_after_s(failure)
    attempts = [attempt_json(each) for each in failure.attempts]
    podium = (
        facts
        | ({"attempts": attempts} if attempts else {})
        | ({"workflow_id": workflow_id} if workflow_id else {})
    )
    shape: dict[str, Any] = {
        "message": failure.message,
        "type": status.type,
        "param": failure.get("param"),
        "code": status.code,
    }
    return shape | ({"podium": podium} if podium else {})


def operator_json(error: PodiumError | Failure) -> dict[str, Any]:
    failure, shape = _failure(error), error_json(error)
    attempts = [operator_attempt_json(each) for each in failure.attempts]
    podium = shape.get("podium", {}) | ({"attempts": attempts} if attempts else {})
    return shape | {"detail": failure.detail} | ({"podium": podium} if podium else {})


def attempt_json(attempt: Attempt) -> dict[str, Any]:
    """Return a failed attempt at a call as callers see it. It was followed by another attempt."""
    return {
        "worker": attempt.worker,
        "error": attempt.error,
        "message": attempt.message,
        "waited_s": round(attempt.waited_s, 6),
        "took_s": None if attempt.took_s is None else round(attempt.took_s, 6),
        "outcome": attempt.outcome,
        "hedge": attempt.hedge,
        "cost_usd": None if attempt.cost_usd is None else float(attempt.cost_usd),
        "cost_is_bound": attempt.cost_is_bound,
    }


def operator_attempt_json(attempt: Attempt) -> dict[str, Any]:
    place = {"deployment": attempt.deployment} if attempt.deployment else {}
    return attempt_json(attempt) | {"detail": attempt.detail} | place


def _failure(error: PodiumError | Failure) -> Failure:
    return error if isinstance(error, Failure) else Failure.of(error)
