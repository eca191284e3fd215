"""The interface of a worker, and the members of a pool."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

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
    """Price per token, or None if not known. The cost is then unknown too."""
    worst_price: Price | None = FREE
    """Highest price of all workers that a call can reach. Budget is reserved at this price."""
    max_output_tokens: int = 4096
    """Longest answer in tokens, unless the request sets a lower limit."""
    has_fallback: bool = False
    """True if another worker is called when this one fails."""
    other_places: int = 0
    """Number of further deployments and fallbacks."""
    is_free: Callable[[], bool] = field(default=lambda: True, compare=False)
    """Returns whether the worker or one of its fallbacks is healthy and has a free slot now."""
    continues: bool = False
    """True if the worker and its fallbacks can continue an answer whose stream was interrupted
    (`Call.prefix`)."""
    reports_filter: frozenset[str] = frozenset()
    """Names of the workers that a call can reach and whose content filter errors are reported to the client. For
    all others, such an error leads to a failover."""
    bills_inner_calls: bool = False
    """True for a worker that runs a team. The calls inside pay from the same budget, so a call to the worker
    itself reserves nothing."""
    sees_images: bool = False
    reads_pdfs: bool = False
    calls_tools: bool | None = None
    """True if it can call tools, or None if not known. Tools are then offered to it."""
    context_tokens: int | None = None
    """Maximum length of the prompt and the answer together, in tokens, or None if not known."""
    tokens_per_s: float | None = None
    """Approximate output speed, or None if not known."""
    system_prompt: str = ""
    """Text that is put before the user's own system prompt."""
    serves: frozenset[Operation] = frozenset({"chat"})
    takes: frozenset[str] = frozenset()
    """Names of the `WireOptions` that all workers support that a call can reach."""
    defaults: Sampling = Sampling()
    """Sampling parameters for requests that do not set them."""
    planned: "PoolMember | None" = None
    """The member as conductors' plans call it, if they call other workers before it."""

    @property
    def for_conductor(self) -> "PoolMember":
        """The member as a conductor's plan calls it."""
        return self.planned or self
