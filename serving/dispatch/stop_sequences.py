"""An answer that ends before the first stop sequence, where the model itself cannot stop there."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import suppress
from math import inf

from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.reply import Delta, FinishReason

REST_S = 5.0
"""So long the rest of an answer that was cut is read for its cost."""
REST_SHARE = 0.9
"""And for no more than so much of the time that the caller has left."""
UNREAD = Delta(
    notes=("The answer was cut at a stop sequence, and its rest took too long: billed at the call's bound.",),
    billed_at_bound=True,
)


async def cut_at(
    stops: Sequence[str], deltas: AsyncIterator[Delta], deadline_at_s: float | None = None
) -> AsyncGenerator[Delta]:
    """`deltas` up to the one of `stops` that is complete first, finished as `stop`. Thoughts and calls of tools are
    not searched; calls after the cut are not made.

    Words are shown as they come, but for an end that may become a stop sequence. After the cut the rest is
    read and thrown away: the last delta says what the call cost. A rest that takes long is left, and the
    call billed at its bound.

    Args:
        stops: where to cut.
        deltas: of the whole answer.
        deadline_at_s: when the caller's time is over, on the monotonic clock.
    """
    held = ""
    async for delta in deltas:
        held += delta.text
        found = _find_first(held, stops)
        pending = 0 if delta.finish else _pending_chars(held, stops)
        shown = len(held) - pending if found is None else found[0]
        text, held = held[:shown], held[shown:]
        if found is not None:
            async for last in _cut(delta, text, found[1], deltas, deadline_at_s):
                yield last
            return
        yield replace(delta, text=text)
    if held:
        yield Delta(held)


def missing_ends(stops: Sequence[str], prefix: str) -> dict[str, str]:
    """What would complete one of `stops` of which `prefix` ends with the beginning; with that one."""
    return {stop[n:]: stop for stop in stops for n in range(1, len(stop)) if prefix.endswith(stop[:n])}


async def cut_at_seam(
    ends: Mapping[str, str], deltas: AsyncIterator[Delta], deadline_at_s: float | None = None
) -> AsyncGenerator[Delta]:
    """`deltas` of an answer that goes on after words of another call: none of its words where they begin with one of
    `ends` (see `missing_ends`), by which a stop sequence is complete that no call has seen whole. Else as it is.
    """
    held, is_open = "", True
    async for delta in deltas:
        if not is_open:
            yield delta
            continue
        held += delta.text
        complete = [end for end in ends if held.startswith(end)]
        if complete:
            async for last in _cut(delta, "", ends[min(complete, key=len)], deltas, deadline_at_s):
                yield last
            return
        is_open = not delta.finish and any(end.startswith(held) for end in ends)
        text, held = ("", held) if is_open else (held, "")
        yield replace(delta, text=text)
    if held:
        yield Delta(held)


async def _cut(
    delta: Delta, text: str, stop: str, deltas: AsyncIterator[Delta], deadline_at_s: float | None
) -> AsyncGenerator[Delta]:
    """The end of an answer that is cut in `delta`, of which `text` is shown, at `stop`."""
    yield replace(delta, text=text, finish=None, tool_calls=(), native=None, stop_sequence=stop)
    with suppress(WorkerError):  # the answer is whole: what its rest took is billed at the bound then
        async for account in _accounts(deltas, deadline_at_s):
            yield account
    yield Delta(finish=FinishReason.STOP)


async def _accounts(deltas: AsyncIterator[Delta], deadline_at_s: float | None) -> AsyncGenerator[Delta]:
    """What the rest of `deltas` says beside words; `UNREAD` where it takes too long."""
    now_s = time.monotonic()
    left_s = inf if deadline_at_s is None else deadline_at_s - now_s
    ends_at_s = now_s + min(REST_S, REST_SHARE * max(0.0, left_s))
    while True:
        timeout = asyncio.timeout(ends_at_s - time.monotonic())
        try:
            async with timeout:
                delta = await anext(deltas, None)
        except TimeoutError:
            if not timeout.expired():
                raise
            yield UNREAD
            return
        if delta is None:
            return
        if delta.finish or delta.usage or delta.cost_usd is not None or delta.notes:
            yield replace(
                delta, text="", reasoning="", finish=None, tool_calls=(), native=None, stop_sequence=None
            )


def _find_first(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """The stop sequence that is complete first, and where it begins, so that it does not matter in which pieces the
    text comes; of several that end together, the longest.
    """
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    return min(ends)[1:] if ends else None


def _pending_chars(text: str, stops: Sequence[str]) -> int:
    """How much of the end of `text` is the beginning of a stop sequence."""
    return max(
        (
            size
            for stop in stops
            for size in range(1, min(len(stop), len(text) + 1))
            if text.endswith(stop[:size])
        ),
        default=0,
    )
