"""The port to a model, the members of a pool, and embeddings."""

import base64
import binascii
import struct
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from msgspec.structs import replace

from conductor.model.call import Call, Sampling
from conductor.model.operation import Operation
from conductor.model.reply import Reply
from conductor.model.usage import FREE, Price


class Worker(Protocol):
    """A model that answers calls."""

    @property
    def name(self) -> str:
        """Its name in the pool."""
        ...

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send `call`. The block is entered when the first token has arrived.

        Until then the call may be retried. Leaving the block closes the socket or aborts the local request, even if the
        answer was not read to its end.

        Raises:
            WorkerError: no token came. If the provider reported what it bills, `usage` and `cost_usd` of the error have it.
        """
        ...


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A worker of the pool, with what the conductor and the ledger need to know about it."""

    name: str
    worker: Worker
    card: str = ""
    """What it is good at, for the conductor to read."""
    model: str = ""
    """The public name of its model; empty if it has none or it is not known."""
    price: Price | None = FREE
    """Per token; None if it is not known, and then the cost is unknown too."""
    worst_price: Price | None = FREE
    """The highest price of the worker and its fallbacks. Calls are reserved at it."""
    max_output_tokens: int = 4096
    """The longest answer, unless the request sets a smaller limit."""
    has_fallback: bool = False
    """Whether another worker answers if it fails."""
    other_places: int = 0
    """The number of its further deployments and fallbacks."""
    is_free: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Whether the worker or a fallback is healthy and has a free slot now."""
    continues: bool = False
    """Whether the worker and its fallbacks can continue an answer whose stream broke off (`Call.prefix`)."""
    tells_filters: frozenset[str] = frozenset()
    """Those of the worker and its fallbacks whose content filter is reported to the client instead of a fallback being asked."""
    bills_inner_calls: bool = False
    """Whether the calls inside it are paid one by one from the same ledger, so that a call of it reserves nothing."""
    sees_images: bool = False
    reads_pdfs: bool = False
    calls_tools: bool | None = None
    """Whether it calls tools; None if it is not known, and then it is offered tools."""
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
