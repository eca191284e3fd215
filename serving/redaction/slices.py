"""Long work on texts, split into short steps so that the event loop stays responsive (decision 0073).

Teams take turns, and within a team its API keys, so that the long texts of one do not delay the others.
"""

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from time import perf_counter, thread_time
from typing import TypeVar
from weakref import WeakKeyDictionary

from conductor.run.record import Account
from serving.fairness import RoundRobin

T = TypeVar("T")
READS = Account("reads")
"""Payer of the work for reads. `serving/api/route_admission.py` has already put these in a fair order."""
Steps = Generator[None, None, T]
"""Generator that pauses after each step of at most a millisecond, and returns the result of the work."""
SLICE_S = 0.003
"""Longest slice of work before other tasks of the event loop run."""
LONG_S, MOST_PAUSE_S = 0.01, 0.25
"""If a turn took more than `LONG_S` seconds of CPU time, the next turn begins after a pause of the same
length, at most `MOST_PAUSE_S` seconds. A small request needs several rounds of the event loop. Without the
pause, each of them would wait for another long turn."""


def finish(steps: Steps[T]) -> T:
    """Run all of `steps` without pauses, and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


async def in_turns(steps: Steps[T], payer: Account) -> T:
    """Run `steps` in the background of the event loop, and return the result.

    One slice runs at a time. Teams take turns, and within a team its keys. A key's work is done in order,
    because many texts at once would stay in memory until the end.
    """
    try:
        until_s = perf_counter() + SLICE_S / 3  # most work is short and needs no turn
        while perf_counter() < until_s:
            next(steps)
        is_begun = False
        while True:
            async with turn(payer, goes_on=is_begun):
                is_begun = True
                until_s = perf_counter() + SLICE_S
                while perf_counter() < until_s:
                    next(steps)
    except StopIteration as ended:
        return ended.value
    finally:
        steps.close()


@asynccontextmanager
async def turn(payer: Account, *, goes_on: bool = False) -> AsyncGenerator[None]:
    """Hold the payer's next turn, one slice of work, in the block and the synchronous code after it. Other
    tasks run between turns. Work that `goes_on` comes before the key's other work.
    """
    loop = asyncio.get_running_loop()
    turns = _TURNS.setdefault(loop, _Turns())
    await turns.take(payer, goes_on)
    began_s = thread_time()

    def end() -> None:
        took_s = thread_time() - began_s
        if took_s > LONG_S:
            loop.call_later(min(took_s, MOST_PAUSE_S), turns.give_back, payer)
        else:
            turns.give_back(payer)

    try:
        yield
    finally:  # deferred, so that work that joins during this round of the loop can get the next turn
        loop.call_soon(end)


class _Turns:
    """Queue for turns, one at a time. The team whose last turn is longest ago is next, and within it the key. A
    key's work is done in order.
    """

    def __init__(self) -> None:
        self._waiting = OrderedDict[str, RoundRobin[asyncio.Future[None]]]()
        """Work that waits, by team."""
        self._is_taken = False

    async def take(self, payer: Account, goes_on: bool) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(payer.tenant, RoundRobin())
        waiting.add(payer.key_id, turn, is_first=goes_on)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn began at the moment of the cancellation
                self.give_back(payer)
            raise

    def give_back(self, payer: Account) -> None:
        if payer.tenant in self._waiting:  # those that joined during its turn come first
            self._waiting.move_to_end(payer.tenant)
            self._waiting[payer.tenant].move_to_end(payer.key_id)
        while self._waiting:
            tenant, waiting = next(iter(self._waiting.items()))
            turn = waiting.pop()
            if not waiting:
                del self._waiting[tenant]
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


_TURNS = WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]()
