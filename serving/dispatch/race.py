"""Hedged calls. If the first token of a call is late, a second attempt (the hedge) is sent as well, and the
attempt that answers first wins.

The first token decides the race, before the client has received anything. The losing attempt is closed, and
billed at the maximum that it may have cost. Each attempt is opened, read and closed in its own task
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
    """Race between a call and at most one hedge, which goes to another deployment or replica of the worker.

    Args:
        route: the worker.
        call: call to send.
        holds: budget reservations of both attempts.
        rules: rules for the first attempt while it waits for a slot.
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
        self._lost_attempts: list[Attempt] = []
        self._ends: list[asyncio.Task[None]] = []
        """Tasks that close attempts. They are awaited after the race."""

    @asynccontextmanager
    async def run(self, after_s: float) -> AsyncGenerator[Reply]:
        """Open the reply of the attempt with the earliest first token.

        A hedge is sent after `after_s` seconds, unless the worker is known to have no other deployment or
        replica. When the block ends, the losing attempt is closed and billed.

        Raises:
            WorkerError: all attempts failed before the first token.
            BudgetExceeded, StoreUnavailable: the last attempt failed, and no budget could be reserved to
                retry it at another deployment.
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
            reply.attempts = (*self._lost_attempts, *reply.attempts)
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
        """Take one hedge from the hedge budget. Return False if no hedge may be sent now."""
        budget = self._route.hedge_budget
        return can_hedge(self._route) and budget is not None and budget.spend()

    async def _hold(self) -> bool:
        """Reserve budget for the second attempt.

        Return False if the budget does not allow it, or if the first attempt answers or fails in the
        meantime.
        """
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
        """Return the first attempt that answers, and drop the other one.

        An attempt that fails while the other still runs is dropped as well.
        """
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
                    error.attempts = (*self._lost_attempts, *error.attempts)
                raise error
            self._drop(first, error)

    def _drop(self, loser: "_Try", error: PodiumError | None = None) -> None:
        self._tries.remove(loser)
        took_s = time.monotonic() - loser.began_s
        if error is None:
            # A lower bound of its time, without which the measured times would lack the slow tail.
            self._route.health.speak(took_s)
        self._lost_attempts += self._holds.drop(hedge=loser.is_hedge, took_s=took_s, error=error)
        self._ends.append(asyncio.create_task(self._close(loser)))

    async def _close(self, loser: "_Try") -> None:
        """Close and bill a lost attempt. Runs in a task of its own, because the worker and the store may be
        slow.
        """
        await loser.leave(asyncio.CancelledError())
        await self._holds.settle_dropped()


async def _any_of(tries: "list[_Try]", within_s: float | None = None) -> None:
    opened = [each.opened for each in tries]
    await asyncio.wait(opened, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


class _Try(CallTask):
    """One attempt of a race."""

    def __init__(self, opening: AbstractAsyncContextManager[Reply], *, is_hedge: bool = False) -> None:
        super().__init__(opening)
        self.is_hedge, self.began_s = is_hedge, time.monotonic()
