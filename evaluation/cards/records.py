"""What the records of runs say of workers: how many calls, what they cost, how fast they wrote. No grades.

Records are what `GET /v1/workflows` answers: from a running Podium, or from a file that holds such an answer,
some of its workflows, or one workflow a line.
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
from evaluation.cards.measurement import CardMeasurement, mean_cost
from evaluation.errors import EvaluationError
from evaluation.json_lines import read_json_lines
from evaluation.results import MOST_USD

MIN_CALLS, MIN_TOKENS = 5, 200
"""A speed rests on at least so many calls and so many tokens."""
MIN_S, MOST_S = 0.001, 10**9
"""A call that took less from its first token to its last tells no speed; no run takes so long as the other."""
NEWEST = 1000
"""The most records that a server is asked for, and gives."""


Count = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Seconds = Annotated[float, Field(ge=0, le=MOST_S, allow_inf_nan=False)]
Dollars = Annotated[Decimal, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]


class CallUsage(BaseModel):
    """What a call's tokens were."""

    output_tokens: Count
    reasoning_tokens: Count = 0


class RecordedStep(BaseModel):
    """The part of a step that is looked at."""

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
    """What `GET /v1/workflows` answers."""

    data: list[Workflow]


_SHAPES: TypeAdapter[WorkflowList | Workflow | list[Workflow]] = TypeAdapter(
    WorkflowList | Workflow | list[Workflow]
)


def read_records(place: str) -> list[Workflow]:
    """The records at `place`: an address of a Podium, or a file.

    Raises:
        EvaluationError: they cannot be read, or are none.
    """
    is_address = place.lower().startswith(("http://", "https://"))
    values = [_fetch(place)] if is_address else _read(Path(place))
    return [workflow for source, value in values for workflow in _workflows(source, value)]


def measure_records(workflows: Iterable[Workflow]) -> dict[str, CardMeasurement]:
    """Cost and speed of each worker. A step that failed over counts for who answered.

    The speed is of the time from the first token to the last. Thoughts that were not streamed came before
    that, so they are left out.
    """
    steps: dict[str, list[RecordedStep]] = defaultdict(list)
    for step in _finished_steps(workflows):
        steps[step.served_by or step.worker].append(step)
    return {
        worker: CardMeasurement(
            calls=len(every),
            usd_per_call=mean_cost([step.cost_usd for step in every]),
            tokens_per_s=_tokens_per_s(every),
        )
        for worker, every in steps.items()
    }


def _finished_steps(workflows: Iterable[Workflow]) -> Iterator[RecordedStep]:
    for workflow in workflows:
        for step in workflow.steps:
            if step.inner is not None:
                yield from _finished_steps([step.inner])
            elif step.status == "done" and step.started_s is not None:
                yield step


def _tokens_per_s(steps: Sequence[RecordedStep]) -> float | None:
    timed: list[tuple[int, float]] = []
    for step in steps:
        if step.usage is None or step.first_token_s is None or step.ended_s is None:
            continue
        unseen = 0 if step.reasoning else step.usage.reasoning_tokens
        tokens = step.usage.output_tokens - unseen - 1  # the first one is there when the time begins
        seconds = step.ended_s - step.first_token_s
        if tokens > 0 and seconds >= MIN_S:
            timed.append((tokens, seconds))
    tokens, seconds = sum(each for each, _ in timed), sum(each for _, each in timed)
    return tokens / seconds if len(timed) >= MIN_CALLS and tokens >= MIN_TOKENS else None


def _workflows(source: str, value: Any) -> list[Workflow]:
    try:
        shape = _SHAPES.validate_python(value)
    except ValidationError as exc:
        fault = max(exc.errors(include_url=False), key=lambda each: len(each["loc"]))  # of the nearest shape
        field = ".".join(str(part) for part in fault["loc"][1:])
        raise EvaluationError(
            f"{source} holds no records: {': '.join(filter(None, (field, fault['msg'])))}. "
            "Save what `GET /v1/workflows` answers."
        ) from exc
    match shape:
        case WorkflowList():
            return shape.data
        case Workflow():
            return [shape]
        case _:
            return shape


def _fetch(url: str) -> tuple[str, Any]:
    """What a server answers, with its address as errors may name it: without the password that it may hold."""
    import httpx2

    address = url.rstrip("/").removesuffix("/v1") + "/v1/workflows"
    shown = re.sub("//.*@", "//", address)
    key = os.environ.get("PODIUM_API_KEY", "").strip() or "none"
    try:
        answer = httpx2.get(address, params={"limit": NEWEST}, headers={"Authorization": f"Bearer {key}"})
        return shown, answer.raise_for_status().json()
    except httpx2.HTTPStatusError as exc:
        why = f"HTTP {exc.response.status_code}"
    except (httpx2.NetworkError, httpx2.TimeoutException) as exc:
        why = f"{type(exc).__name__}: {exc}"
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, RecursionError) as exc:
        why = type(exc).__name__  # its words may repeat the key or the password
    raise EvaluationError(f"No records at {shown} ({why}). Is a Podium running there?")


def _read(path: Path) -> Iterable[tuple[str, Any]]:
    try:
        return [(str(path), json.loads(path.read_text(encoding="utf-8")))]
    except (ValueError, RecursionError):  # not one value: one a line, perhaps gzipped
        return read_json_lines(path)
    except OSError as exc:
        raise EvaluationError(f"{path} cannot be read: {exc.strerror}.") from exc
