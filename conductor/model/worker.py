"""The port to a model, the members of a pool, and embeddings."""

import base64
import binascii
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Protocol

from conductor.model.call import Call, Sampling
from conductor.model.operation import Operation
from conductor.model.reply import Reply
from conductor.model.usage import FREE, Price


class Worker(Protocol):
    """A model that can be asked one thing."""

    @property
    def name(self) -> str:
        """Its name in the pool."""
        ...

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send `call`; entered once the first token is here.

        So the time to the first token is the time entering takes, a retry is allowed exactly until then,
        and leaving the block closes the socket or aborts the local request, whatever was read by then.

        Raises:
            WorkerError: nothing was shown. A provider that had begun to work may still count what it read;
                where it said so, `usage` and `cost_usd` of the error have it.
        """
        ...


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A worker as the pool shows it: what it is good at, what it takes, what it can hold."""

    name: str
    worker: Worker
    card: str = ""
    """What it is good at, for the conductor to read."""
    model: str = ""
    """The public name of its model; empty: it is none, or nobody said."""
    price: Price | None = FREE
    """Per token; None where nobody said, so that its cost is unknown and never 0."""
    worst_price: Price | None = FREE
    """The highest of its own and of those it may fall back to: what a call is reserved at."""
    max_output_tokens: int = 4096
    """The longest answer, where the request names no smaller figure."""
    has_fallback: bool = False
    """Whether somebody else answers where it fails."""
    other_places: int = 0
    """How many more places than one there are where it is reached, or who answers in its place."""
    is_free: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Whether a call would be made at once now, by it or by somebody in its place, at one that is well."""
    continues: bool = False
    """Whether its answers, and those of who answers in its place, go on where a stream broke off (`Call.prefix`)."""
    tells_filters: frozenset[str] = frozenset()
    """Of it and those it may fall back to, whose content filter the client is told of: nobody is asked instead."""
    bills_inner_calls: bool = False
    """Its calls are paid one by one inside it, from the same ledger, so asking it reserves nothing."""
    sees_images: bool = False
    reads_pdfs: bool = False
    calls_tools: bool | None = None
    """Whether it calls tools; None: not known, and it may be offered some."""
    context_tokens: int | None = None
    """The longest prompt and answer together; None: not known."""
    tokens_per_s: float | None = None
    """About how fast it writes; None: not known."""
    system_prompt: str = ""
    """Put before the user's own system prompt."""
    serves: frozenset[Operation] = frozenset({"chat"})
    """What it can be asked for."""
    takes: frozenset[str] = frozenset()
    """The `WireOptions` that it and those it may fall back to take, by name."""
    defaults: Sampling = Sampling()
    """Used where a request says nothing."""

    def with_defaults(self, sampling: Sampling) -> Sampling:
        """`sampling` with this member's own settings where it says nothing."""
        own = self.defaults
        return replace(
            sampling,
            max_output_tokens=sampling.max_output_tokens or self.max_output_tokens,
            temperature=own.temperature if sampling.temperature is None else sampling.temperature,
            top_p=own.top_p if sampling.top_p is None else sampling.top_p,
            effort=sampling.effort or own.effort,
        )


def encode(vector: Sequence[float]) -> str:
    """`vector` as text.

    Raises:
        ValueError: a number of it is none that float32 holds.
    """
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (struct.error, OverflowError) as exc:
        raise ValueError(f"no vector: {exc}") from exc


def decode(text: str) -> list[float]:
    """The vector in `text`.

    Raises:
        ValueError: there is none.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"no base64: {exc}") from exc
    if not data or len(data) % 4:
        raise ValueError(f"{len(data)} bytes are no vector of float32")
    return list(struct.unpack(f"<{len(data) // 4}f", data))
