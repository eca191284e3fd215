"""Stop sequences that Podium applies because the model does not accept them."""

import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from math import inf

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.deltas import deltas_until
from conductor.model.reply import Delta, FinishReason

REST_S = 5.0
"""Maximum seconds for reading the rest of a cut answer, at the end of which the usage and cost are reported.
"""
REST_SHARE = 0.9
"""Maximum share of the caller's remaining time for reading that rest."""
UNREAD = Delta(
    notes=(
        "The answer was cut at a stop sequence. Its usage arrived too late, so the call is billed at the maximum that it may have cost.",
    ),
    billed_at_bound=True,
)


async def cut_at(
    stops: Sequence[str], deltas: AsyncIterator[Delta], deadline_at_s: float | None = None
) -> AsyncGenerator[Delta]:
    """Cut an answer at its first stop sequence, and end it with the finish reason `stop`.

    Only the text of the answer is searched, not its reasoning and tool calls. Tool calls after the cut are
    dropped. Text is yielded as it arrives, except for characters at its end that may begin a stop sequence.
    After the cut, the rest of the answer is read only for its usage and cost. If that takes too long, the
    call is billed at the maximum that it may have cost.
    """
    buffer = ""
    async for delta in deltas:
        buffer += delta.text
        stop = _find_first(buffer, stops)
        pending = 0 if delta.finish else _pending_chars(buffer, stops)
        end = len(buffer) - pending if stop is None else stop[0]
        text, buffer = buffer[:end], buffer[end:]
        if stop is not None:
            async for last in _cut(delta, text, stop[1], deltas, deadline_at_s):
                yield last
            return
        yield replace(delta, text=text)
    if buffer:
        yield Delta(buffer)


def missing_ends(stops: Sequence[str], prefix: str) -> dict[str, str]:
    """Return the missing parts of stop sequences that may begin at the end of `prefix`, with the sequences."""
    return {stop[n:]: stop for stop in stops for n in range(1, len(stop)) if prefix.endswith(stop[:n])}


async def cut_at_seam(
    ends: Mapping[str, str], deltas: AsyncIterator[Delta], deadline_at_s: float | None = None
) -> AsyncGenerator[Delta]:
    """Cut a continued answer to nothing if it starts with one of `ends` (see `missing_ends`), or leave it
    unchanged.
    """
    buffer, is_open = "", True
    async for delta in deltas:
        if not is_open:
            yield delta
            continue
        buffer += delta.text
        complete = [end for end in ends if buffer.startswith(end)]
        if complete:
            async for last in _cut(delta, "", ends[min(complete, key=len)], deltas, deadline_at_s):
                yield last
            return
        is_open = not delta.finish and any(end.startswith(buffer) for end in ends)
        text, buffer = ("", buffer) if is_open else (buffer, "")
        yield replace(delta, text=text)
    if buffer:
        yield Delta(buffer)


async def _cut(
    delta: Delta, text: str, stop: str, deltas: AsyncIterator[Delta], deadline_at_s: float | None
) -> AsyncGenerator[Delta]:
    """Yield the last deltas of an answer that is cut at `stop`. `text` precedes it in `delta`."""
    yield replace(delta, text=text, finish=None, tool_calls=(), native=None, stop_sequence=stop)
    with suppress(WorkerError):  # the answer is complete; after an error, the call is billed at its bound
        async for account in _accounts(deltas, deadline_at_s):
            yield account
    yield Delta(finish=FinishReason.STOP)


async def _accounts(deltas: AsyncIterator[Delta], deadline_at_s: float | None) -> AsyncGenerator[Delta]:
    """Yield the usage, cost and notes in the remaining deltas, or `UNREAD` if they arrive too late."""
    now_s = time.monotonic()
    left_s = inf if deadline_at_s is None else deadline_at_s - now_s
    ends_at_s = now_s + min(REST_S, REST_SHARE * max(0.0, left_s))
    async for delta in deltas_until(deltas, ends_at_s):
        if delta is None:
            yield UNREAD
        elif delta.finish or delta.usage or delta.cost_usd is not None or delta.notes:
            yield replace(
                delta, text="", reasoning="", finish=None, tool_calls=(), native=None, stop_sequence=None
            )


def _find_first(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return the index and the text of the stop sequence that is complete first, or None. If several are
    complete, the longest counts, so it does not matter how deltas split the text.
    """
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[1:] if ends else None


def _pending_chars(text: str, stops: Sequence[str]) -> int:
    """Return how many characters at the end of `text` may be the start of a stop sequence."""
    return max(
        (
            size
            for stop in stops
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ),
        default=0,
    )
