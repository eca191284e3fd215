"""One call sent twice, of which one answers: a hedge for a call whose first token is late.

What was shown is never at stake: the race is decided before the first token. The attempt that loses is closed, and is
paid as all that it can have cost. Each of the two is opened, read and closed in a task of its own
(`conductor/run/call.py`).
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from msgspec.structs import replace

from conductor.errors import BudgetExceeded, PodiumError, StoreUnavailable, WorkerError
from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.reply import Reply
from conductor.model.terms import Holds, Places
from conductor.run.call import CallTask
from conductor.run.waiting import wait_until_done
from serving.dispatch.limiter import NO_RULES, QueueRules
from serving.dispatch.policy import can_hedge
from serving.dispatch.route import Route


class Race:
    """`call` to `route`, and perhaps once more at another of its places.

    Args:
        route: the worker.
        call: as it is sent.
        holds: what is reserved for both.
        rules: of the first one's wait for a slot.
    """

    def __init__(
        self,
        route: Route,
        call: Call,
        holds: Holds,
        rules: QueueRules = NO_RULES,
    ) -> None:
        self._route, self._call, self._holds, self._rules = route, call, holds, rules
        self._places = call.terms.limits.places or Places()
        self._tries: list[_Try] = []
        self._lost: list[Attempt] = []
        self._ends: list[asyncio.Task[None]] = []
        """Of attempts whose end is waited for only after the race."""

    @asynccontextmanager
    async def run(self, after_s: float) -> AsyncGenerator[Reply]:
        """Open the reply of the attempt that speaks first. A hedge is sent after `after_s`, unless the first attempt is
        known to be at the only place there is. The one that lost is closed and paid once this is left.

        Raises:
            WorkerError: both failed, or the only one that was sent. Nothing was shown.
            BudgetExceeded, StoreUnavailable: likewise, if it could not be made again elsewhere.
        """
        first = self._route.open(
            self._call,
            self._holds.hold(),
            self._rules,
        )
        try:
            self._tries.append(_Try(first))
            await _any_of(self._tries, after_s)
            is_late = not self._tries[0].has_ended and self._places.has_other()
            if is_late and self._may_hedge() and await self._hold():
                site = replace(self._call.site, attempt=self._call.site.attempt + 1)
                hedge = replace(self._call, site=site)
                hold = self._holds.hold(hedge=True)
                self._tries.append(_Try(self._route.open(hedge, hold), is_hedge=True))
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

    def _may_hedge(self) -> bool:
        """Whether a hedge may be sent now; it is counted then."""
        budget = self._route.hedge_budget
        return can_hedge(self._route) and budget is not None and budget.spend()

    async def _hold(self) -> bool:
        """Reserve the second attempt, while the first may still speak."""
        holding = asyncio.create_task(self._holds.hold_second())
        try:
            await asyncio.wait([holding, self._tries[0].opened], return_when=asyncio.FIRST_COMPLETED)
            if holding.done() and holding.result():
                if not self._tries[0].has_ended:
                    return True
                await self._holds.release_second()
        finally:
            holding.cancel()
            with suppress(asyncio.CancelledError):
                await holding
        return False

    async def _winner(self) -> "_Try":
        """Wait for the first that speaks; the other is dropped, and so is one that failed while the other goes on."""
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
            self._route.health.speak(
                took_s
            )  # it would have taken longer still: else the tail would be unknown
        self._lost += self._holds.drop(hedge=lost.is_hedge, took_s=took_s, error=error)
        self._ends.append(asyncio.create_task(self._close(lost)))

    async def _close(self, lost: "_Try") -> None:
        """Closing may take its server's time, and paying the store's: neither is the winner's."""
        await lost.leave(asyncio.CancelledError())
        await self._holds.settle_dropped()


async def _any_of(tries: "list[_Try]", within_s: float | None = None) -> None:
    opened = [each.opened for each in tries]
    await asyncio.wait(opened, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


class _Try(CallTask):
    """One of the attempts."""

    def __init__(self, opening: AbstractAsyncContextManager[Reply], *, is_hedge: bool = False) -> None:
        super().__init__(opening)
        self.is_hedge, self.began_s = is_hedge, time.monotonic()
