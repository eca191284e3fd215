"""Measure workers from the records of runs: number of calls, cost and speed. Records contain no grades.

The records come from `GET /v1/workflows` of a running Podium, or from a file. The file contains such a
response, some of its workflows, or one workflow per line.
"""

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from conductor.model.usage import MOST_TOKENS
from evaluation import EvaluationError
from evaluation.cards.measurement import CardMeasurement, mean_cost
from evaluation.json_lines import read_json_lines
from evaluation.results import MOST_USD

MIN_CALLS, MIN_TOKENS = 5, 200
"""Minimum number of calls and minimum number of tokens from which a speed is computed."""
MIN_S, MOST_S = 0.001, 10**9
"""Shortest time between tokens for a speed, and longest time of a run, in seconds."""
NEWEST = 1000
"""Number of records to request. A server returns at most this many."""


Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
Dollars = Annotated[Decimal, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]


class CallUsage(BaseModel):
    """Token usage of a call."""

    output_tokens: Count
    reasoning_tokens: Count = 0


class RecordedStep(BaseModel):
    """Fields of a step that this module reads."""

    worker: str
    served_by: str | None = None
    status: str
    usage: CallUsage | None = None
    cost_usd: Dollars | None = None
    reasoning: str | None = None
    started_s: Seconds | None = None
    first_token_s: Seconds | None = None
    ended_s: Seconds | None = None
    inner: "Workflow | None" = None


class Workflow(BaseModel):
    """One run."""

    steps: list[RecordedStep]


class WorkflowList(BaseModel):
    """Response of `GET /v1/workflows`."""

    data: list[Workflow]


_SHAPES: TypeAdapter[WorkflowList | Workflow | list[Workflow]] = TypeAdapter(
    WorkflowList | Workflow | list[Workflow]
)


def read_records(place: str) -> list[Workflow]:
    """Return the records at `place`: the URL of a Podium, or a file. Raise EvaluationError if it is invalid."""
    is_address = place.lower().startswith(("http://", "https://"))
    values = [_fetch(place)] if is_address else _read(Path(place))
    return [workflow for source, value in values for workflow in _workflows(source, value)]


def measure_records(workflows: Iterable[Workflow]) -> dict[str, CardMeasurement]:
    """Return the cost and speed of each worker. A step that failed over counts for the worker that answered.

    Speed is measured from the first token, so reasoning tokens that were not streamed do not count.
    """
    steps: dict[str, list[RecordedStep]] = defaultdict(list)
    for step in _iter_finished_steps(workflows):
        steps[step.served_by or step.worker].append(step)
    return {
        worker: CardMeasurement(
            calls=len(every),
            usd_per_call=mean_cost([step.cost_usd for step in every]),
            tokens_per_s=_tokens_per_s(every),
        )
        for worker, every in steps.items()
    }


def _iter_finished_steps(workflows: Iterable[Workflow]) -> Iterator[RecordedStep]:
    for workflow in workflows:
        for step in workflow.steps:
            if step.inner is not None:
                yield from _iter_finished_steps([step.inner])
            elif step.status == "done" and step.started_s is not None:
                yield step


def _tokens_per_s(steps: Sequence[RecordedStep]) -> float | None:
    timed: list[tuple[int, float]] = []
    for step in steps:
        if step.usage is None or step.first_token_s is None or step.ended_s is None:
            continue
        unseen = 0 if step.reasoning else step.usage.reasoning_tokens
        tokens = step.usage.output_tokens - unseen - 1  # the first token arrives when the time starts
        seconds = step.ended_s - step.first_token_s
        if tokens > 0 and seconds >= MIN_S:
            timed.append((tokens, seconds))
    tokens, seconds = sum(each for each, _ in timed), sum(each for _, each in timed)
    return tokens / seconds if len(timed) >= MIN_CALLS and tokens >= MIN_TOKENS else None


def _workflows(source: str, value: Any) -> list[Workflow]:
    try:
        shape = _SHAPES.validate_python(value)
    except ValidationError as exc:
        # The error with the longest location belongs to the closest shape.
        fault = max(exc.errors(include_url=False), key=lambda each: len(each["loc"]))
        field = ".".join(str(part) for part in fault["loc"][1:])
        raise EvaluationError(
            f"{source} has no valid records: {': '.join(filter(None, (field, fault['msg'])))}. "
            "Save the response of `GET /v1/workflows`."
        ) from exc
    match shape:
        case WorkflowList():
            return shape.data
        case Workflow():
            return [shape]
        case _:
            return shape


def _fetch(url: str) -> tuple[str, Any]:
    """Return the server's URL and its response. The URL is for error messages, so its password is removed."""
    import httpx2

    address = url.rstrip("/").removesuffix("/v1") + "/v1/workflows"
    safe_address = re.sub("//.*@", "//", address)
    key = os.environ.get("PODIUM_API_KEY", "").strip() or "none"
    try:
        answer = httpx2.get(address, params={"limit": NEWEST}, headers={"Authorization": f"Bearer {key}"})
        return safe_address, answer.raise_for_status().json()
    except httpx2.HTTPStatusError as exc:
        why = f"HTTP {exc.response.status_code}"
    except (httpx2.NetworkError, httpx2.TimeoutException) as exc:
        why = f"{type(exc).__name__}: {exc}"
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as exc:
        why = type(exc).__name__  # the message may contain the key or the password
    raise EvaluationError(
        f"Cannot read records from {safe_address} ({why}). Check that Podium is running there."
    )


def _read(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        return [(str(path), json.loads(path.read_text(encoding="utf-8")))]
    except (ValueError, RecursionError):  # not a single JSON value: read it as JSON lines, plain or gzipped
        return read_json_lines(path)
    except OSError as exc:
        raise EvaluationError(f"{path} cannot be read: {exc.strerror}.") from exc
