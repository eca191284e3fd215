"""What is kept of each request of a run, those under way included. Knows neither Locust nor sockets."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from loadtest.sse import Felt

PHASES = ("plan", "steps", "first_token", "end")
"""The marks of a request, in the order in which they come."""

OK, LEFT, NOT_STARTED, UNFINISHED = "ok", "left", "not_started", "unfinished"
"""Outcomes that are no failure of the server's; every other is a kind of failure."""


@dataclass(slots=True)
class Sample:
    """One request. Times of the run in seconds since it began, of the request in milliseconds since it was due."""

    kind: str
    due_s: float
    """When it should have been sent; a user of a closed loop sends at once."""
    sent_s: float
    outcome: str = UNFINISHED
    phases_ms: dict[str, float] = field(default_factory=dict)
    """Those of `PHASES` that it came to."""
    token_gaps_ms: list[float] = field(default_factory=list)
    workflow_id: str | None = None
    calls: int | None = None
    tokens: int | None = None
    cost_usd: float | None = None
    wall_s: float | None = None
    critical_path_s: float | None = None
    fallback: bool = False

    @property
    def failed(self) -> bool:
        """The server did not do what it was asked."""
        return self.outcome not in (OK, LEFT, NOT_STARTED, UNFINISHED)

    def heard(self, seen: Felt) -> None:
        """Take over what a stream told by its end."""
        marks = zip(
            PHASES, (seen.plan_ms, seen.steps_ms, seen.first_token_ms, seen.done_ms), strict=True
        )  # fmt: skip
        self.phases_ms = {phase: ms for phase, ms in marks if ms is not None}
        if seen.calls < 2:
            self.phases_ms.pop("steps", None)  # one call: nothing came before it
        self.token_gaps_ms = seen.token_gaps_ms
        self.calls = seen.calls or None
        self.tokens = seen.total_tokens
        self.sums(seen.sums)

    def answered(self, answer: Any, took_ms: float) -> None:
        """Take over what a whole answer tells."""
        answer = answer if isinstance(answer, dict) else {}
        self.outcome = OK if answer.get("choices") else "no_choice"
        self.phases_ms = {"end": took_ms}
        self.tokens = (answer.get("usage") or {}).get("total_tokens")
        self.sums(answer.get("podium") or {})

    def sums(self, podium: dict[str, Any]) -> None:
        """Take over the run's sums."""
        self.workflow_id = podium.get("workflow_id")
        self.cost_usd = podium.get("cost_usd")
        self.wall_s, self.critical_path_s = podium.get("wall_s"), podium.get("critical_path_s")
        self.fallback = bool(podium.get("fallback"))


class Recording:
    """Every request of a run; its clock starts when it is made."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []
        self.in_flight = 0
        self.began = time.perf_counter()
        self.ended_s = 0.0
        """When the loop was over, answers waited for included."""

    @property
    def now_s(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    @contextmanager
    def request(self, kind: str, due_s: float | None = None) -> Iterator[Sample]:
        """A request that is sent now. Whatever ends it, it stays in the recording with the outcome it has by then."""
        now_s = self.now_s
        sample = Sample(kind, now_s if due_s is None else due_s, now_s)
        self.samples.append(sample)
        self.in_flight += 1
        try:
            yield sample
        finally:
            self.in_flight -= 1

    def not_started(self, kind: str, due_s: float) -> None:
        """A request that was due and could not be sent."""
        self.samples.append(Sample(kind, due_s, due_s, NOT_STARTED))

    def took_ms(self, sample: Sample) -> float:
        """Since `sample` was due."""
        return (self.now_s - sample.due_s) * 1000
