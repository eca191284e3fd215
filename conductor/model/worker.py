"""The interface of a worker, the members of a pool, and the encoding of embedding vectors."""

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
        """Name of the worker in the pool."""
        ...

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        """Send `call`. The block is entered when the first token has arrived.

        Until then the call may be retried. Leaving the block closes the socket or aborts the local request,
        even if the answer was not read to its end.

        Raises:
            WorkerError: the call failed before its first token. The error has `usage` and `cost_usd` if the
                provider reported them.
        """
        ...


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A worker of the pool, with the facts that the conductor and the budget need."""

    name: str
    worker: Worker
    card: str = ""
    """Description, for the conductor, of what the worker is good at."""
    model: str = ""
    """Public name of the model. Empty if there is none or it is not known."""
    price: Price | None = FREE
    """Price per token. None: not known, and then the cost is unknown too."""
    worst_price: Price | None = FREE
    """Highest price of the worker and its fallbacks. Budget is reserved at this price."""
    max_output_tokens: int = 4096
    """Longest answer in tokens, unless the request sets a lower limit."""
    has_fallback: bool = False
    """True if another worker is called when this one fails."""
    other_places: int = 0
    """Number of further deployments and fallbacks."""
    is_free: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Returns whether the worker or one of its fallbacks is healthy and has a free slot now."""
    continues: bool = False
    """True if the worker and its fallbacks can continue an answer whose stream broke off (`Call.prefix`)."""
    tells_filters: frozenset[str] = frozenset()
    """Names of this worker and its fallbacks whose content filter errors are reported to the client. For all
    others, such an error leads to a failover."""
    bills_inner_calls: bool = False
    """True for a worker that runs a team. The calls inside pay from the same budget, so a call to the worker
    itself reserves nothing."""
    sees_images: bool = False
    reads_pdfs: bool = False
    calls_tools: bool | None = None
    """True if it can call tools. None: not known; tools are then offered to it."""
    context_tokens: int | None = None
    """Maximum length of the prompt and the answer together, in tokens. None: not known."""
    tokens_per_s: float | None = None
    """Approximate output speed. None: not known."""
    system_prompt: str = ""
    """Text that is put before the user's own system prompt."""
    serves: frozenset[Operation] = frozenset({"chat"})
    """Operations that it supports."""
    takes: frozenset[str] = frozenset()
    """Names of the `WireOptions` that it and all its fallbacks support."""
    defaults: Sampling = Sampling()
    """Sampling parameters for requests that do not set them."""

    def with_defaults(self, sampling: Sampling) -> Sampling:
        """Return a copy of `sampling` in which fields that are not set have this member's defaults."""
        own = self.defaults
        return replace(
            sampling,
            max_output_tokens=sampling.max_output_tokens or self.max_output_tokens,
            temperature=own.temperature if sampling.temperature is None else sampling.temperature,
            top_p=own.top_p if sampling.top_p is None else sampling.top_p,
            effort=sampling.effort or own.effort,
        )


def encode(vector: Sequence[float]) -> str:
    """Return `vector` as base64 of little-endian float32.

    Raises:
        ValueError: a number does not fit into float32.
    """
    try:
        return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode("ascii")
    except (struct.error, OverflowError) as exc:
        raise ValueError(f"not a vector of float32: {exc}") from exc


def decode(text: str) -> list[float]:
    """Return the vector that `encode` wrote.

    Raises:
        ValueError: the text is not an encoded vector.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as exc:
        raise ValueError(f"not base64: {exc}") from exc
    if not data or len(data) % 4:
        raise ValueError(f"{len(data)} bytes are not a vector of float32")
    return list(struct.unpack(f"<{len(data) // 4}f", data))
