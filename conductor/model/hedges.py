"""A hedge: a second call for the same answer, made where the first is late. What it costs is held before."""

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Protocol

from conductor.errors import PodiumError, WorkerError
from conductor.model.callee import Callee
from conductor.model.failure import Attempt


class Hedges(Protocol):
    """What is held for two calls of which one is to answer."""

    async def hold_second(self) -> bool:
        """Hold all that a second call can take. False: it does not fit, and nothing is held."""
        ...

    def renewal(self, *, hedge: bool) -> Callable[[WorkerError, float], Awaitable[int]]:
        """`Call.on_retry` of one of the two: what fails inside it is paid from its own hold.

        Args:
            hedge: of the second one, which is held; else of the first.
        """
        ...

    def waiting(self, *, hedge: bool) -> Callable[[], AbstractContextManager[None]]:
        """`Call.on_wait` of one of the two: while it waits for its turn it is not sent, and costs nothing."""
        ...

    def asking(self, *, hedge: bool) -> Callable[[Callee], None]:
        """`Call.on_asked` of one of the two: which of them is lost is billed as who was asked last."""
        ...

    async def release_second(self) -> None:
        """The second call is not made."""
        ...

    def drop(self, *, hedge: bool, took_s: float, error: PodiumError | None = None) -> tuple[Attempt, ...]:
        """Put one of the two on record; the other is the call from now on. It is paid by `settle_dropped`: what was under
        way of it, for what had failed inside it before is paid.

        Args:
            hedge: the second one; else the first.
            took_s: since it was made.
            error: that it failed with, or could not be made again for; None: the other was sooner, and what was sent is
                paid as it may have cost.

        Returns:
            What goes on record of it, and of what failed inside it before, oldest first.
        """
        ...

    async def settle_dropped(self) -> None:
        """Pay for the one that was dropped, as is on record; awaited before the other ends."""
        ...
