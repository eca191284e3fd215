"""Streams of deltas: opening an answer from them, joining characters that were cut, and reading them until a deadline."""

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager

from msgspec.structs import replace

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.characters import HalfJoiner, whole, whole_value
from conductor.model.reply import Delta, FinishReason, Reply, filter_error
from conductor.model.usage import FREE, Meter, Price, cost_of, dearer


@asynccontextmanager
async def open_reply(
    worker: str,
    model: str,
    deltas: AsyncGenerator[Delta],
    price: Price | None = FREE,
    meter: Meter | None = None,
) -> AsyncGenerator[Reply]:
    """Turn a generator of deltas into the context manager that `Worker.open` returns.

    The block is entered at the first token. Leaving it closes the generator.

    Args:
        worker: name of the worker, for errors and the record.
        model: name of the requested model.
        deltas: generator that has not been started. Its `finally` blocks must release what it opens.
        price: price of `worker`.
        meter: see `Reply`.

    Raises:
        WorkerError: `deltas` raised it before the first token.
        WorkerUnavailable: `deltas` is empty.
        ContentFiltered: the provider refused to answer before the first token.
    """
    join, began_s = _SurrogateJoiner().join, time.monotonic()
    async with aclosing(deltas):
        early: list[Delta] = []
        try:
            async for each in deltas:
                delta = join(each)
                early.append(delta)
                if delta.text or delta.reasoning or delta.tool_calls or delta.finish or delta.inner_run:
                    break
            if early and _is_refusal(early[-1]):
                raise filter_error(worker, early, price)
        except WorkerError as exc:
            _bill(exc, early, price)
            raise
        if not early:
            raise WorkerUnavailable(f"{worker} closed the stream without sending any data.", worker=worker)
        unseen_s = time.monotonic() - began_s

        async def all_of_it() -> AsyncGenerator[Delta]:
            for delta in early:
                yield delta
            async for delta in deltas:
                yield join(delta)

        async with aclosing(all_of_it()) as whole:
            yield Reply(
                worker, whole, model, price, meter=meter, unseen_s=unseen_s, is_empty=_is_empty(early[-1])
            )


async def deltas_until(deltas: AsyncIterator[Delta], ends_at_s: float) -> AsyncGenerator[Delta | None]:
    """Yield the deltas, or None at `ends_at_s` (`time.monotonic`) if they have not ended by then."""
    while True:
        timeout = asyncio.timeout(ends_at_s - time.monotonic())
        try:
            async with timeout:
                delta = await anext(deltas)
        except StopAsyncIteration:
            return
        except TimeoutError:
            if not timeout.expired():
                raise
            yield None
            return
        yield delta


class _SurrogateJoiner:
    """Joins surrogate pairs that were cut between the deltas of one answer."""

    def __init__(self) -> None:
        self._text, self._reasoning = HalfJoiner(), HalfJoiner()
        self._holds_half = False

    def join(self, delta: Delta) -> Delta:
        is_plain = delta.text.isascii() and delta.reasoning.isascii()
        if is_plain and not (self._holds_half or delta.tool_calls or delta.native):
            return delta
        is_last = delta.finish is not None
        text = self._text.feed(delta.text, is_last=is_last)
        reasoning = self._reasoning.feed(delta.reasoning, is_last=is_last)
        self._holds_half = self._text.holds_half or self._reasoning.holds_half
        if text != delta.text or reasoning != delta.reasoning:
            delta = replace(delta, text=text, reasoning=reasoning)
        if delta.tool_calls or delta.native:
            native = delta.native and replace(delta.native, payload=whole_value(delta.native.payload))
            calls = tuple(
                replace(each, id=whole(each.id), name=whole(each.name), arguments=whole(each.arguments))
                for each in delta.tool_calls
            )
            delta = replace(delta, tool_calls=calls, native=native)
        return delta


def _bill(error: WorkerError, early: list[Delta], price: Price | None) -> None:
    """Add to `error` the usage and cost that the server reported before the first token."""
    usages = [delta.usage for delta in early if delta.usage and delta.usage.is_possible]
    costs = [delta.cost_usd for delta in early if delta.cost_usd is not None]
    if usages or costs:
        error.usage = usages[-1] if usages else None
        error.cost_usd = dearer(costs[-1] if costs else None, cost_of(price, error.usage))


def _is_empty(first: Delta) -> bool:
    """Return whether the answer ends normally with its `first` delta, without any content."""
    return first.finish is FinishReason.STOP and not (_has_content(first) or first.inner_run)


def _is_refusal(delta: Delta) -> bool:
    """Return whether a content filter ended the answer at its first delta, without any content."""
    return delta.finish is FinishReason.CONTENT_FILTER and not _has_content(delta)


def _has_content(delta: Delta) -> bool:
    return bool(delta.text or delta.reasoning or delta.tool_calls)
