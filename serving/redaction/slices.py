"""Long work on texts, split into steps. It shares the event loop with everything else, and keys take turns
(decision 0073).
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from time import perf_counter, thread_time
from typing import TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T")
READS = "reads"
"""Payer of work that many keys need, whose order was decided before (`serving/api/admission.py`)."""
Steps = Generator[None, None, T]
"""Work that pauses after each step, at most a millisecond, and returns its result."""
SLICE_S = 0.003
"""Longest slice of work before other tasks of the event loop run."""
LONG_S, MOST_PAUSE_S = 0.01, 0.25
"""After a turn that took more than `LONG_S` of this thread's time, there is a pause of the same length, at
most `MOST_PAUSE_S`. A small request takes several rounds of the event loop, and without the pause each of
them would wait for another long turn."""


def finish(steps: Steps[T]) -> T:
    """Run all of `steps` without a pause, and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


async def in_turns(steps: Steps[T], payer: str) -> T:
    """Run `steps` alongside everything else in this process: one slice of one payer's work at a time, payers
    in turn.

    A payer's work is done in the order of arrival. If many texts were processed at a time, all would stay in
    memory until the last one ends.

    Args:
        steps: the work.
        payer: the key that the work is for.
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
async def turn(payer: str, *, goes_on: bool = False) -> AsyncGenerator[None]:
    """Take a turn for one slice of a payer's work, and for the synchronous code that follows it. Everything
    else in this process runs after the turn.

    Args:
        payer: whose turn it is.
        goes_on: whether this work had a turn before. It then precedes the payer's other work.
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
    """Queue of turns, one at a time: payers in the order of their last turns, and each payer's work in order
    of arrival.
    """

    def __init__(self) -> None:
        self._waiting = OrderedDict[str, deque[asyncio.Future[None]]]()
        self._is_taken = False

    async def take(self, payer: str, goes_on: bool) -> None:
        if not self._is_taken:
            self._is_taken = True
            return
        turn = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(payer, deque())
        waiting.appendleft(turn) if goes_on else waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn began at the moment of the cancellation
                self.give_back(payer)
            raise

    def give_back(self, payer: str) -> None:
        if payer in self._waiting:
            self._waiting.move_to_end(payer)  # payers that joined during its turn come first
        while self._waiting:
            first, turns = next(iter(self._waiting.items()))
            turn = turns.popleft()
            if not turns:
                del self._waiting[first]
            if not turn.done():
                turn.set_result(None)
                return
        self._is_taken = False


_TURNS = WeakKeyDictionary[asyncio.AbstractEventLoop, _Turns]()
