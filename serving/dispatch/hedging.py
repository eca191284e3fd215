"""Hedged calls. If the first token of a call is late, a second attempt (the hedge) is sent as well, and the
attempt that answers first wins.

The first token decides the race, before the client has received anything. The losing attempt is closed, and
billed at the maximum that it may have cost. Each attempt is opened, read and closed in its own task.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress

from msgspec.structs import replace

from conductor.errors import BudgetExceeded, PodiumError, StoreUnavailable, WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.reply import Delta, Reply
from conductor.model.terms import Holds, Places
from conductor.run.run import wait_until_done
from serving.dispatch.limiter import QueueRules
from serving.dispatch.policy import can_hedge
from serving.dispatch.route import Route


class Race:
    """Race between a call and at most one hedge at another deployment or replica. `rules` are for the first
    one's wait.
    """

    def __init__(self, route: Route, call: Call, holds: Holds, rules: QueueRules) -> None:
        self._route, self._call, self._holds, self._rules = route, call, holds, rules
        self._places = call.terms.limits.places or Places()
        self._tries: list[_Try] = []
        self._lost_attempts: list[Attempt] = []
        self._ends: list[asyncio.Task[None]] = []
        """Tasks that close attempts. They are awaited after the race."""

    @asynccontextmanager
    async def run(self, after_s: float) -> AsyncGenerator[Reply]:
        """Open the reply of the attempt with the earliest first token. The losing attempt is closed and
        billed at the end.

        A hedge is sent after `after_s` seconds, unless there is no other deployment or replica. If all
        attempts fail, raise the last error.
        """
        try:
            self._tries.append(_Try(self._route.open(self._call, self._holds.hold(), self._rules)))
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
        """Reserve budget for the second attempt. Return False if there is none, or the first is decided
        meanwhile.
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
        """Return the first attempt that answers, and drop the other one, or one that fails before."""
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
        """Close and bill a lost attempt, in a task because worker and store may be slow."""
        await loser.leave(asyncio.CancelledError())
        await self._holds.settle_dropped()


async def _any_of(tries: "list[_Try]", within_s: float | None = None) -> None:
    opened = [each.opened for each in tries]
    await asyncio.wait(opened, timeout=within_s, return_when=asyncio.FIRST_COMPLETED)


class _Try:
    """One attempt of a race, in a task of its own. The call stays open until `leave`."""

    def __init__(self, opening: AbstractAsyncContextManager[Reply], *, is_hedge: bool = False) -> None:
        self.is_hedge, self.began_s = is_hedge, time.monotonic()
        loop = asyncio.get_running_loop()
        self.opened: asyncio.Future[Reply] = loop.create_future()
        """The reply, or the error that the call raised before its first token."""
        self._reader_exit: asyncio.Future[None] = loop.create_future()
        self._pieces = asyncio.Queue[Delta | Exception | None](1)
        self._has_all = False
        self._delivered_error: Exception | None = None
        """The error after the first token, once the reader has received it."""
        self._task = asyncio.create_task(self._hold_open(opening))
        self._task.add_done_callback(_retrieve_exception)
        self.opened.add_done_callback(_retrieve_exception)

    @property
    def has_ended(self) -> bool:
        """True if the wait for the first token has ended: the token has arrived, or the call has failed."""
        return self.opened.done()

    async def leave(self, error: BaseException | None = None) -> None:
        """Stop reading and close the call. Deltas that have arrived count for the bill. A call that still
        streams is cancelled. In a complete answer, `error` is raised inside the call's context manager.
        """
        while not self._pieces.empty():
            piece = self._pieces.get_nowait()
            if isinstance(piece, Delta):
                reply = self.opened.result()
                reply.count(piece)
                reply.finish = reply.finish or piece.finish
        if self._has_all and not self._reader_exit.done() and (error is None or isinstance(error, Exception)):
            self._reader_exit.set_exception(error) if error else self._reader_exit.set_result(None)
        else:
            self._task.cancel()
        await wait_until_done([self._task])
        if error is not None or self._task.cancelled():
            return
        if (
            failure := self._task.exception()
        ) is not None and failure is not self._delivered_error:  # the reader has handled it
            raise failure

    async def _hold_open(self, opening: AbstractAsyncContextManager[Reply]) -> None:
        reply: Reply | None = None
        try:
            async with opening as reply:
                source, reply.deltas = reply.deltas, self._relay()
                self.opened.set_result(reply)
                async for delta in source:
                    await self._pieces.put(delta)
                self._has_all = True
                await self._pieces.put(None)
                await self._reader_exit
        except asyncio.CancelledError:
            self.opened.cancel()  # the worker cancelled its own call
            if reply is not None and not (self._reader_exit.done() or self._task.cancelling()):
                message = f"The worker {reply.worker} cancelled its own call."
                await self._pieces.put(WorkerUnavailable(message, worker=reply.worker))
            raise
        except Exception as exc:
            if not self.opened.done():
                self.opened.set_exception(exc)
            elif not self._reader_exit.done():
                await self._pieces.put(exc)
            raise

    async def _relay(self) -> AsyncGenerator[Delta]:
        while (piece := await self._pieces.get()) is not None:
            if isinstance(piece, Exception):
                self._delivered_error = piece
                raise piece
            yield piece


def _retrieve_exception(ended: "asyncio.Future[Reply] | asyncio.Task[None]") -> None:
    """Retrieve the exception, so that asyncio does not log it. The reader of the call raises it."""
    if not ended.cancelled():
        ended.exception()
