"""Budget reservations of one call: one for each attempt, and a second one while a hedge runs beside it."""

from contextlib import AbstractContextManager
from typing import Protocol

from conductor.errors import PodiumError, WorkerError
from conductor.model.callee import Callee
from conductor.model.failure import Attempt


class AttemptHold(Protocol):
    """Reservation of one of the attempts that are under way."""

    async def renew(self, error: WorkerError, wait_s: float = 0.0) -> int:
        """Pay for the attempt that failed with `error`, wait, and reserve the next one.

        Returns:
            The output tokens that the next attempt may take.

        Raises:
            BudgetExceeded: the next attempt could cost more than is left.
            StoreUnavailable: the reservation cannot be stored.
        """
        ...

    def waiting(self) -> AbstractContextManager[None]:
        """Mark the attempt as queued: it costs nothing if its client leaves now."""
        ...

    def sent(self, callee: Callee) -> None:
        """Record where the attempt is being sent: it is billed at that price if the server does not report usage."""
        ...


class Holds(Protocol):
    """Reservations of one call."""

    def hold(self, *, hedge: bool = False) -> AttemptHold:
        """Return the reservation of the first attempt under way, or of its hedge."""
        ...

    async def hold_second(self) -> bool:
        """Reserve a hedge. Return False, with nothing reserved, if it does not fit."""
        ...

    async def release_second(self) -> None:
        """Release the reservation of a hedge that was not sent."""
        ...

    def drop(self, *, hedge: bool, took_s: float, error: PodiumError | None = None) -> tuple[Attempt, ...]:
        """Record one of two attempts as lost; the other one is the call from now on. `settle_dropped` pays for it.

        Args:
            hedge: whether the hedge is lost, else the first attempt.
            took_s: seconds since it was sent.
            error: why it failed. None: the other attempt was faster.

        Returns:
            The records of it and of its earlier attempts, oldest first.
        """
        ...

    async def settle_dropped(self) -> None:
        """Pay for the attempt that was dropped."""
        ...
