"""Reads a stream of chat chunks and says what a user would have felt. Knows bytes and clocks, not sockets or Locust.

The wire: server-sent events (https://html.spec.whatwg.org/multipage/server-sent-events.html) as OpenAI sends them: one JSON
object a `data:` line, `[DONE]` at the end, comments (`: ...`) as heartbeats.
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
    seen = Felt()
    last_token_ms: float | None = None
    for payload in payloads(lines):
        now_ms = (clock() - began) * 1000
        seen.first_byte_ms = now_ms if seen.first_byte_ms is None else seen.first_byte_ms
        if payload == "[DONE]":
            seen.done_ms = now_ms
            return seen
        text = _take(json.loads(payload), seen, now_ms)
        if text:
            if last_token_ms is not None:
                seen.token_gaps_ms.append(now_ms - last_token_ms)
            last_token_ms = now_ms
    raise BrokenStreamError("cut", f"the stream ended after {len(seen.text)} characters, without [DONE]")


def _take(chunk: dict[str, Any], seen: Felt, now_ms: float) -> str:
    """Note what `chunk` tells; the words of the answer in it."""
    if error := chunk.get("error"):
        raise BrokenStreamError(str(error.get("code") or error.get("type")), str(error.get("message")))
    if podium := chunk.get("podium"):
        seen.workflow_id = podium.get("workflow_id", seen.workflow_id)
        if "type" in podium and seen.first_progress_ms is None:
            seen.first_progress_ms = now_ms
    text = ""
    for choice in chunk.get("choices", ()):
        text += choice.get("delta", {}).get("content") or ""
        seen.finish_reason = choice.get("finish_reason") or seen.finish_reason
    if text and seen.first_token_ms is None:
        seen.first_token_ms = now_ms
    seen.text += text
    return text
