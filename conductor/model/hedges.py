"""A hedge: a second call for the same answer, made where the first is late. What it costs is held before."""

from typing import Protocol

from conductor.errors import WorkerError
from conductor.model.failure import Attempt


class Hedges(Protocol):
    """What is held for two calls of which one is to answer."""

    async def hold_second(self) -> bool:
        """Hold for a second call what is held for the first. False: it does not fit, and nothing is held."""
        ...

    async def release_second(self) -> None:
        """The second call is not made."""
        ...

    def drop(self, *, hedge: bool, took_s: float, error: WorkerError | None = None) -> Attempt:
        """Put one of the two on record; the other is the call from now on. It is paid by `settle_dropped`.

        Args:
            hedge: the second one; else the first.
            took_s: since it was made.
            error: that it failed with; None: the other was sooner, and what was sent is paid as it may have cost.

        Returns:
            What goes on record of it.
        """
        ...

    async def settle_dropped(self) -> None:
        """Pay for the one that was dropped, as is on record; awaited before the other ends."""
        ...
