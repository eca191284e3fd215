"""Reads a stream of chat chunks and says what a user would have felt. Knows bytes and clocks, not sockets or Locust.

The wire: server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as OpenAI sends them: one JSON
object a `data:` line, `[DONE]` at the end, comments (`: ...`) as heartbeats. Podium adds `podium` to a chunk: an event of the
run where the request asked for progress, and the run's sums in the last chunk.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any


class BrokenStreamError(Exception):
    """The stream ended without `[DONE]`, or with an error event; `kind` is what to count it under."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(f"{kind}: {message}")
        self.kind = kind


@dataclass(slots=True)
class Felt:
    """One streamed answer, in milliseconds since the request was sent."""

    first_byte_ms: float | None = None
    """The first event of any sort, such as the role."""
    first_progress_ms: float | None = None
    """The first news of a plan or a step."""
    first_token_ms: float | None = None
    """The first words of the answer."""
    token_gaps_ms: list[float] = field(default_factory=list)
    """Between one piece of the answer and the next."""
    done_ms: float | None = None
    text: str = ""
    finish_reason: str | None = None
    workflow_id: str | None = None
    plan_ms: float | None = None
    """By the server's clock, since the run began: the first plan that a model wrote has ended."""
    steps_ms: float | None = None
    """By the server's clock, since the run began: the last step was called, so that all it reads was there."""
    calls: int = 0
    """Plans and steps that a model was called for; retries are not told."""
    sums: dict[str, Any] = field(default_factory=dict)
    """The run's `podium` object: cost, wall, critical path."""
    total_tokens: int | None = None
    """Of all calls, where the request asked for usage."""
    output_tokens: int | None = None
    """Of those, what was written."""


class Reader:
    """Takes the lines of a stream as they come.

    Args:
        began: when the request was sent, by `clock`.
        clock: seconds.
    """

    def __init__(self, began: float, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seen = Felt()
        self.events = 0
        """`data:` lines so far."""
        self._began, self._clock = began, clock
        self._last_token_ms: float | None = None
        self._planning = False

    @property
    def done(self) -> bool:
        """`[DONE]` was there."""
        return self.seen.done_ms is not None

    def take(self, line: bytes) -> None:
        """Note what `line` tells.

        Raises:
            BrokenStreamError: it holds an error, or no JSON.
        """
        for payload in payloads((line,)):
            now_ms = (self._clock() - self._began) * 1000
            self.events += 1
            if self.seen.first_byte_ms is None:
                self.seen.first_byte_ms = now_ms
            if payload == "[DONE]":
                self.seen.done_ms = now_ms
            else:
                self._chunk(_object(payload), now_ms)

    def end(self) -> Felt:
        """What was felt, now that no line follows.

        Raises:
            BrokenStreamError: `[DONE]` was not there.
        """
        if not self.done:
            raise BrokenStreamError(
                "cut", f"the stream ended after {len(self.seen.text)} characters, without [DONE]"
            )
        return self.seen

    def _chunk(self, chunk: dict[str, Any], now_ms: float) -> None:
        if error := chunk.get("error"):
            raise BrokenStreamError(str(error.get("code") or error.get("type")), str(error.get("message")))
        seen = self.seen
        if podium := chunk.get("podium"):
            seen.workflow_id = podium.get("workflow_id", seen.workflow_id)
            if "type" in podium:
                self._progress(podium, now_ms)
            else:
                seen.sums = podium
        if usage := chunk.get("usage"):
            seen.total_tokens = usage.get("total_tokens")
            seen.output_tokens = usage.get("completion_tokens")
        for choice in chunk.get("choices", ()):
            self._words(choice.get("delta", {}).get("content") or "", now_ms)
            seen.finish_reason = choice.get("finish_reason") or seen.finish_reason

    def _words(self, text: str, now_ms: float) -> None:
        if not text:
            return
        if self._last_token_ms is None:
            self.seen.first_token_ms = now_ms
        else:
            self.seen.token_gaps_ms.append(now_ms - self._last_token_ms)
        self._last_token_ms = now_ms
        self.seen.text += text

    def _progress(self, told: dict[str, Any], now_ms: float) -> None:
        seen, at_ms = self.seen, told.get("at_s", 0.0) * 1000
        if seen.first_progress_ms is None:
            seen.first_progress_ms = now_ms
        match told["type"]:
            case "plan_began":
                self._planning = told.get("worker") is not None
                seen.calls += self._planning
            case "plan_ended" if self._planning and seen.plan_ms is None:
                seen.plan_ms = at_ms
            case "step_began":
                seen.calls += 1
                seen.steps_ms = at_ms


def _object(payload: str) -> dict[str, Any]:
    try:
        chunk = json.loads(payload)
    except ValueError:
        chunk = None
    if not isinstance(chunk, dict):
        raise BrokenStreamError("no_json", f"an event is no JSON object: {payload[:80]!r}")
    return chunk


def payloads(lines: Iterable[bytes]) -> Iterator[str]:
    """What the `data:` lines say; comments and blank lines left out."""
    for line in lines:
        if line.startswith(b"data:"):
            yield line[5:].strip().decode()


def felt(lines: Iterable[bytes], began: float, clock: Callable[[], float] = time.perf_counter) -> Felt:
    """Read a stream to its end.

    Args:
        lines: of the body, as they come.
        began: when the request was sent, by `clock`.
        clock: seconds.

    Raises:
        BrokenStreamError: it holds an error, or ends before `[DONE]`.
    """
    reader = Reader(began, clock)
    for line in lines:
        reader.take(line)
        if reader.done:
            break
    return reader.end()
