"""Recording of a run's requests, including those that are still open."""

import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

from loadtest.sse import StreamResult

PHASES = ("plan", "steps", "first_token", "end")
"""Phases of a request, in the order in which they end."""

OK, LEFT, NOT_STARTED, UNFINISHED = "ok", "left", "not_started", "unfinished"
"""Outcomes that are not failures of the server. Every other outcome is the name of a kind of failure."""


@dataclass(slots=True)
class Sample:
    """One request. `due_s` and `sent_s` count from the start of the run, phases in ms from `due_s`."""

    kind: str
    due_s: float
    """When the request should have been sent. In a closed loop, this is when the user sent it."""
    sent_s: float
    outcome: str = UNFINISHED
    phases_ms: dict[str, float] = field(default_factory=dict[str, float])
    """Time at which each phase ended. Phases that the request did not reach are missing."""
    token_gaps_ms: list[float] = field(default_factory=list[float])
    workflow_id: str | None = None
    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    wall_s: float | None = None
    critical_path_s: float | None = None
    fallback: bool = False

    @property
    def is_failure(self) -> bool:
        """Whether the server did not answer as requested."""
        return self.outcome not in (OK, LEFT, NOT_STARTED, UNFINISHED)

    def take_stream(self, result: StreamResult) -> None:
        """Copy the times and totals of a complete stream."""
        ends_ms = (result.plan_ms, result.steps_ms, result.first_token_ms, result.done_ms)
        self.phases_ms = {phase: ms for phase, ms in zip(PHASES, ends_ms, strict=True) if ms is not None}
        if result.calls < 2:
            self.phases_ms.pop("steps", None)  # a single call has no phase before it
        self.token_gaps_ms = result.token_gaps_ms
        self.calls = result.calls or None
        self.tokens = result.total_tokens
        self._take_totals(result.totals)

    def take_answer(self, answer: Any, took_ms: float) -> None:
        """Copy the time and totals of an answer that was not streamed."""
        content = cast(dict[str, Any], answer) if isinstance(answer, dict) else dict[str, Any]()
        self.outcome = OK if content.get("choices") else "no_choice"
        self.phases_ms = {"end": took_ms}
        self.tokens = cast(dict[str, Any], content.get("usage") or {}).get("total_tokens")
        self._take_totals(content.get("podium") or {})

    def _take_totals(self, podium: dict[str, Any]) -> None:
        self.workflow_id = podium.get("workflow_id")
        self.cost_usd = podium.get("cost_usd")
        self.wall_s, self.critical_path_s = podium.get("wall_s"), podium.get("critical_path_s")
        self.fallback = bool(podium.get("fallback"))


class Recording:
    """Recording of all requests of a run. Its clock starts when it is created."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.in_flight = 0
        self.began = time.perf_counter()
        self.ended_s = 0.0
        """When the loop ended, after the answers that it waited for."""

    @property
    def now_s(self) -> float:
        """Seconds since the start of the run."""
        return time.perf_counter() - self.began

    @contextmanager
    def request(self, kind: str, due_s: float | None = None) -> Generator[Sample]:
        """Record a request that is sent in the block. Its sample is kept, however the request ends."""
        now_s = self.now_s
        sample = Sample(kind, now_s if due_s is None else due_s, now_s)
        self.samples.append(sample)
        self.in_flight += 1
        try:
            yield sample
        finally:
            self.in_flight -= 1

    def not_started(self, kind: str, due_s: float) -> None:
        """Record a request that was due but could not be sent."""
        self.samples.append(Sample(kind, due_s, due_s, NOT_STARTED))

    def since_due_ms(self, sample: Sample) -> float:
        """Return the milliseconds since `sample` was due."""
        return (self.now_s - sample.due_s) * 1000
