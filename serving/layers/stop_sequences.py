"""An answer that ends before the first stop sequence, where the model itself cannot be told to."""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import replace

from conductor.errors import WorkerUnavailable
from conductor.worker import Delta, FinishReason


async def cut_at(stops: Sequence[str], deltas: AsyncIterator[Delta]) -> AsyncGenerator[Delta]:
    """`deltas` up to the first of `stops`, finished as `stop`. Thoughts are not searched.

    Words are shown as they come, but for an end that may become a stop sequence. After the cut the rest is read and thrown away:
    the last delta says what the call cost.
    """
    held, was_cut = "", False
    try:
        async for delta in deltas:
            if was_cut:
                if delta.finish or delta.usage or delta.cost_usd is not None or delta.notes:
                    yield replace(delta, text="", reasoning="", finish=None)
                continue
            held += delta.text
            found = [at for stop in stops if (at := held.find(stop)) >= 0]
            was_cut = bool(found)
            shown = (
                min(found) if found else len(held) if delta.finish else len(held) - _undecided(held, stops)
            )
            text, held = held[:shown], held[shown:]
            yield replace(delta, text=text, finish=None if was_cut else delta.finish)
    except WorkerUnavailable:
        if not was_cut:
            raise
    if was_cut:
        yield Delta(finish=FinishReason.STOP)
    elif held:
        yield Delta(held)


def _undecided(text: str, stops: Sequence[str]) -> int:
    """How much of the end of `text` is the beginning of a stop sequence."""
    return max(
        (size for stop in stops for size in range(1, len(stop)) if text.endswith(stop[:size])), default=0
    )
