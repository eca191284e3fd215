"""Parser of a stream of chat chunks that measures the times that a user notices.

The format is server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as OpenAI
sends them: one JSON object per `data:` line, `[DONE]` at the end, and comments (`: ...`) as heartbeats.
Podium adds the field `podium` to some chunks. It contains an event of the run if the request asked for
progress, and the totals of the run in the last chunk.
"""

import json
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, cast


class BrokenStreamError(Exception):
    """The stream ended without `[DONE]`, or contained an error event. `kind` is the outcome to count."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(slots=True)
class StreamResult:
    """One streamed answer. Times are in milliseconds since the request was sent."""

    first_progress_ms: float | None = None
    """When the first event of a plan or a step arrived."""
    first_token_ms: float | None = None
    """When the first words of the answer arrived."""
    token_gaps_ms: list[float] = field(default_factory=list[float])
    """Times between successive pieces of the answer."""
    done_ms: float | None = None
    text: str = ""
    plan_ms: float | None = None
    """End of the first plan that a model wrote, in ms since the run's start by the server's clock."""
    steps_ms: float | None = None
    """Start of the last step, when its inputs were complete, in ms by the server's clock."""
    calls: int = 0
    """Number of plans and steps that called a model. The stream does not report retries."""
    totals: dict[str, Any] = field(default_factory=dict[str, Any])
    """The run's `podium` object: cost, wall time, critical path."""
    total_tokens: int | None = None
    """Tokens of all calls, if the request asked for usage."""
    output_tokens: int | None = None
    """Output tokens of all calls."""


class SseReader:
    """Parser of the lines of a stream as they arrive. `began_s` is by the clock of `take`'s times."""

    def __init__(self, began_s: float) -> None:
        self.result = StreamResult()
        self.events = 0
        """Number of `data:` lines so far."""
        self._began_s = began_s
        self._last_token_ms: float | None = None
        self._is_planning = False

    @property
    def is_done(self) -> bool:
        return self.result.done_ms is not None

    def take(self, line: bytes, at_s: float | None = None) -> None:
        """Process a line of the body, at `at_s` or just now. Raise BrokenStreamError for an error or bad
        JSON.
        """
        if not line.startswith(b"data:"):
            return
        now_ms = ((time.perf_counter() if at_s is None else at_s) - self._began_s) * 1000
        payload = line[5:].strip().decode()
        self.events += 1
        if payload == "[DONE]":
            self.result.done_ms = now_ms
        else:
            self._take_chunk(_object(payload), now_ms)

    def end(self) -> StreamResult:
        """Return the result after the last line. Raise BrokenStreamError if `[DONE]` did not arrive."""
        if not self.is_done:
            characters = len(self.result.text)
            raise BrokenStreamError("cut", f"the stream ended after {characters} characters without [DONE]")
        return self.result

    def _take_chunk(self, chunk: dict[str, Any], now_ms: float) -> None:
        if error := chunk.get("error"):
            raise BrokenStreamError(str(error.get("code") or error.get("type")), str(error.get("message")))
        result = self.result
        if podium := chunk.get("podium"):
            if "type" in podium:
                self._take_event(podium, now_ms)
            else:
                result.totals = podium
        if usage := chunk.get("usage"):
            result.total_tokens = usage.get("total_tokens")
            result.output_tokens = usage.get("completion_tokens")
        for choice in chunk.get("choices", ()):
            self._take_words(choice.get("delta", {}).get("content") or "", now_ms)

    def _take_words(self, text: str, now_ms: float) -> None:
        if not text:
            return
        if self._last_token_ms is None:
            self.result.first_token_ms = now_ms
        else:
            self.result.token_gaps_ms.append(now_ms - self._last_token_ms)
        self._last_token_ms = now_ms
        self.result.text += text

    def _take_event(self, event: dict[str, Any], now_ms: float) -> None:
        result, at_ms = self.result, event.get("at_s", 0.0) * 1000
        if result.first_progress_ms is None:
            result.first_progress_ms = now_ms
        match event["type"]:
            case "plan_began":
                self._is_planning = event.get("worker") is not None
                result.calls += self._is_planning
            case "plan_ended" if self._is_planning and result.plan_ms is None:
                result.plan_ms = at_ms
            case "step_began":
                result.calls += 1
                result.steps_ms = at_ms
            case _:
                pass


def _object(payload: str) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise BrokenStreamError("no_json", f"an event is not a JSON object: {payload[:80]!r}")
    return cast(dict[str, Any], chunk)


def read_stream(lines: Iterable[tuple[float, bytes]], began_s: float) -> StreamResult:
    """Read a stream from its lines and their arrival times. Raise BrokenStreamError if it is incomplete."""
    reader = SseReader(began_s)
    for at_s, line in lines:
        reader.take(line, at_s)
        if reader.is_done:
            break
    return reader.end()
