"""What the records of runs say of workers: how many calls, what they cost, how fast they wrote. No grades.

Records are what `GET /v1/workflows` answers: from a running Podium, or from a file that holds such an answer,
some of its workflows, or one workflow a line.
"""

import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from pydantic import BaseModel, TypeAdapter, ValidationError

from evaluation.cards.measurement import Measurement, mean_cost
from evaluation.errors import EvaluationError
from evaluation.json_lines import read_json_lines

MIN_CALLS, MIN_TOKENS = 5, 200
"""A speed rests on at least so many calls and so many tokens."""
NEWEST = 1000
"""The most records that a server is asked for, and gives."""


class CallUsage(BaseModel):
    """What a call's tokens were."""

    output_tokens: int
    reasoning_tokens: int = 0


class Step(BaseModel):
    """The part of a step that is looked at."""

    worker: str
    served_by: str | None = None
    status: str
    usage: CallUsage | None = None
    cost_usd: Decimal | None = None
    reasoning: str | None = None
    started_s: float | None = None
    first_token_s: float | None = None
    ended_s: float | None = None
    inner: "Workflow | None" = None


class Workflow(BaseModel):
    """One run."""

    steps: list[Step]


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
    values = [_fetch(place)] if place.startswith(("http://", "https://")) else _read(Path(place))
    try:
        shapes = [_SHAPES.validate_python(value) for value in values]
    except ValidationError as exc:
        raise EvaluationError(
            f"{place} holds no records: {exc.errors(include_url=False)[0]['msg']}. "
            "Save what `GET /v1/workflows` answers."
        ) from exc
    found: list[Workflow] = []
    for shape in shapes:
        match shape:
            case WorkflowList():
                found += shape.data
            case Workflow():
                found.append(shape)
            case _:
                found += shape
    return found


def measure_records(workflows: Iterable[Workflow]) -> dict[str, Measurement]:
    """Cost and speed of each worker. A step that failed over counts for who answered.

    The speed is of the time from the first token to the last. Thoughts that were not streamed came before
    that, so they are left out.
    """
    steps: dict[str, list[Step]] = defaultdict(list)
    for step in _finished_steps(workflows):
        steps[step.served_by or step.worker].append(step)
    return {
        worker: Measurement(
            calls=len(every),
            usd_per_call=mean_cost([step.cost_usd for step in every]),
            tokens_per_s=_tokens_per_s(every),
        )
        for worker, every in steps.items()
    }


def _finished_steps(workflows: Iterable[Workflow]) -> Iterator[Step]:
    for workflow in workflows:
        for step in workflow.steps:
            if step.inner is not None:
                yield from _finished_steps([step.inner])
            elif step.status == "done" and step.started_s is not None:
                yield step


def _tokens_per_s(steps: Sequence[Step]) -> float | None:
    timed: list[tuple[int, float]] = []
    for step in steps:
        if step.usage is None or step.first_token_s is None or step.ended_s is None:
            continue
        unseen = 0 if step.reasoning else step.usage.reasoning_tokens
        tokens = step.usage.output_tokens - unseen - 1  # the first one is there when the time begins
        if tokens > 0 and step.ended_s > step.first_token_s:
            timed.append((tokens, step.ended_s - step.first_token_s))
    tokens, seconds = sum(each for each, _ in timed), sum(each for _, each in timed)
    return tokens / seconds if len(timed) >= MIN_CALLS and tokens >= MIN_TOKENS else None


def _fetch(url: str) -> Any:
    import httpx2

    address = url.rstrip("/").removesuffix("/v1") + "/v1/workflows"
    key = os.environ.get("PODIUM_API_KEY", "none")
    try:
        answer = httpx2.get(address, params={"limit": NEWEST}, headers={"Authorization": f"Bearer {key}"})
        return answer.raise_for_status().json()
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError) as exc:
        raise EvaluationError(
            f"No records at {address} ({type(exc).__name__}: {exc}). Is a Podium running there?"
        ) from exc


def _read(path: Path) -> list[Any]:
    try:
        return [json.loads(path.read_text(encoding="utf-8"))]
    except ValueError:  # not one value: one a line, perhaps gzipped
        return [value for _, value in read_json_lines(path)]
    except OSError as exc:
        raise EvaluationError(f"{path} cannot be read: {exc.strerror}.") from exc
