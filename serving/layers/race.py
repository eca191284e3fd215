"""One call made twice, of which one answers.

Each is opened, read and closed in a task of its own (`conductor/run/call_task.py`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress

from conductor.errors import BudgetExceeded, PodiumError, StoreUnavailable, WorkerError
from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.field_values import copy_with
from conductor.model.hedges import Hedges
from conductor.model.places import Places
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from conductor.run.call_task import CallTask
from conductor.run.waiting import wait_until_done
from serving.health import WorkerHealth


class Race:
    """`call` to `worker`, and perhaps once more, elsewhere."""

    def __init__(self, worker: Worker, call: Call, health: WorkerHealth) -> None:
        assert call.hedges is not None
        self._worker, self._call, self._health = worker, call, health
        self._hedges: Hedges = call.hedges
        self._places = call.places or Places()
        self._tries: list[_Try] = []
        self._lost: list[Attempt] = []
        self._ends: list[asyncio.Task[None]] = []
        """Of tries that nobody waits for until the race has ended."""

    @asynccontextmanager
    async def run(self, after_s: float, may_hedge: Callable[[], bool]) -> AsyncGenerator[Reply]:
        """The reply of whichever speaks first. `may_hedge` is asked after so long, where the first is not known to be
        at the only place there is. What lost is closed and paid once this is left, not before the reply is there.

        Raises:
            WorkerError: both failed, or the only one that was made. Nothing was shown.
            BudgetExceeded, StoreUnavailable: likewise, where it could not be made again elsewhere.
        """
        try:
            self._tries.append(_Try(self._worker, self._made(hedge=False)))
            await _any_of(self._tries, after_s)
            is_late = not self._tries[0].has_ended and self._places.has_other()
            if is_late and may_hedge() and await self._hold():
                site = copy_with(self._call.site, attempt=self._call.site.attempt + 1)
                hedge = copy_with(self._made(hedge=True), site=site, on_turn=None)
                self._tries.append(_Try(self._worker, hedge, is_hedge=True))
            winner = await self._winner()
            reply = winner.opened.result()
            reply.attempts = (*self._lost, *reply.attempts)
            yield reply
        except BaseException as exc:
            self._ends += [asyncio.create_task(each.leave(exc)) for each in self._tries]
            raise
        else:
            for each in self._tries:
                await each.leave()
        finally:
            await wait_until_done(self._ends)

    def _made(self, *, hedge: bool) -> Call:
        """The call as one of the two: what it makes again inside is paid from its own hold, not from the other's, and
        each waits for itself.
        """
        paid, wait = self._hedges.renewal(hedge=hedge), self._hedges.waiting(hedge=hedge)
        asked = self._hedges.asking(hedge=hedge)
        return copy_with(
            self._call, on_retry=paid, on_wait=wait, on_asked=asked, hedges=None, places=self._places
        )

    async def _hold(self) -> bool:
        """Hold for the second call, while the first may still speak."""
        holding = asyncio.create_task(self._hedges.hold_second())
        try:
            await asyncio.wait([holding, self._tries[0].opened], return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and holding.result():
                if not self._tries[0].has_ended:
                    return True
                await self._hedges.release_second()
        finally:
            holding.cancel()
            with suppress(asyncio.CancelledError):
                await holding
        return False

    async def _winner(self) -> "_Try":
        """The first that speaks; the other is dropped, and so is one that failed while the other goes on."""
        while True:
            await _any_of(self._tries)
            first = next(each for each in self._tries if each.has_ended)
            error = first.opened.exception()
            if error is None:
                for other in [each for each in self._tries if each is not first]:
                    self._drop(other)
                return first
            if len(self._tries) == 1 or not isinstance(
                error, WorkerError | BudgetExceeded | StoreUnavailable
            ):
                if isinstance(error, WorkerError):
                    error.attempts = (*self._lost, *error.attempts)
                raise error
            self._drop(first, error)

    def _drop(self, lost: "_Try", error: PodiumError | None = None) -> None:
        self._tries.remove(lost)
        took_s = time.monotonic() - lost.began_s
        if error is None:
            self._health.speak(took_s)  # it would have taken longer still: without this the tail were unknown
        self._lost += self._hedges.drop(hedge=lost.is_hedge, took_s=took_s, error=error)
        self._ends.append(asyncio.create_task(self._close(lost)))

    async def _close(self, lost: "_Try") -> None:
        """Closing may take its server's time, and paying the store's: neither is the winner's."""
        await lost.leave(asyncio.CancelledError())
        await self._hedges.settle_dropped()


async def _any_of(tries: "list[_Try]", within_s: float | None = None) -> None:
    opened = [each.opened for each in tries]
    await asyncio.wait(opened, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


class _Try(CallTask):
    """One of the calls."""

    def __init__(self, worker: Worker, call: Call, *, is_hedge: bool = False) -> None:
        super().__init__(worker.open(call))
        self.is_hedge, self.began_s = is_hedge, time.monotonic()
