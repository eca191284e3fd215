"""Long work on texts, cut into steps: whoever waits for it shares the event loop with everything else, and keys take
turns (decision 0073).
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
"""A payer for what many keys read, whose turns are given out before (`serving/api/admission.py`)."""
Steps = Generator[None, None, T]
"""Work that stops after each step, of a millisecond at most, and returns its result."""
SLICE_S = 0.003
"""Of work between two looks of the event loop at everything else."""
LONG_S, MOST_PAUSE_S = 0.01, 0.25
"""A turn that took more of this thread's time than the first is followed by a pause as long as itself, up to the second: answering a small request takes
several rounds of the event loop, and without the pause each of them would wait for another large one.
"""


def finish(steps: Steps[T]) -> T:
    """Do all of `steps` at once."""
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value


async def in_turns(steps: Steps[T], payer: str) -> T:
    """Do `steps` beside everything else of this process: one slice of one payer's work at a time, payers in turn. A payer's
    work is done in the order in which it came: of many texts that are begun at once, all would be held until the last has ended.

    Args:
        steps: the work.
        payer: the key whose work it is.
    """
    try:
        until_s = perf_counter() + SLICE_S / 3  # most work is short, and waits for nobody
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
    """Take a turn for one slice of a payer's work, and for what follows it without waiting; everything else of this process has
    its turn after it.

    Args:
        payer: whose turn it is.
        goes_on: whether this work had a turn before. It comes before the payer's other work then.
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
    finally:  # whoever joins before everything else has had its turn is in time for the next one
        loop.call_soon(end)


class _Turns:
    """One turn at a time: payers in the order in which they had their last one, and each payer's work in its order."""

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
            if turn.done() and not turn.cancelled():  # it came in the same moment
                self.give_back(payer)
            raise

    def give_back(self, payer: str) -> None:
        if payer in self._waiting:
            self._waiting.move_to_end(payer)  # those who joined during its turn are before it
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
