"""How long a server may go without a word. Knows no wire.

The HTTP libraries measure silence from byte to byte, so comments, pings and headers that drip keep a dead
call alive. Here only words count: the time that a call has waited since its last one, its connection and
its headers included; and the events that brought none.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from math import inf
from typing import TypeVar

from conductor.errors import WorkerUnavailable
from conductor.model.terms import Pauses
from serving.workers.event_stream import MOST_EMPTY
from serving.workers.http_guard import BodyRefused

GOODBYE_S = 10.0
"""Once the model has stopped, so long its usage may take; the answer is whole without it."""

T = TypeVar("T")


def shorter(one_s: float | None, other_s: float | None) -> float | None:
    """The shorter of two limits; None: there is none."""
    return min((each for each in (one_s, other_s) if each is not None), default=None)


class StallTimer:
    """Waits for a server's events, until it was waited `limit_s` without a word. A slow reader's time does
    not count.

    Args:
        limit_s: the longest silence between two words; `inf`: any.
        error: makes what is raised then; called with whether the server had begun to answer.
        first_s: the longest silence before the first one. None: `limit_s`.
        usual_s: likewise, where less is usual: a call that takes longer is `only_late`. None: not known.
        pauses: where silences between words are written down, and what is usual of them; None: nowhere.
    """

    def __init__(
        self,
        limit_s: float,
        error: Callable[[bool], WorkerUnavailable],
        first_s: float | None = None,
        usual_s: float | None = None,
        pauses: Pauses | None = None,
    ) -> None:
        longest_s = limit_s if first_s is None else first_s
        usual_pause_s = pauses.limit_s if pauses else None
        self._pauses, self._is_short = pauses, usual_pause_s is not None and usual_pause_s < limit_s
        limit_s = limit_s if usual_pause_s is None else min(limit_s, usual_pause_s)
        self.limit_s, self.first_s = limit_s, longest_s if usual_s is None else min(longest_s, usual_s)
        self._error = error
        self._is_usual = self.first_s < longest_s
        self._left_s = self.first_s
        self._has_begun = self._has_spoken = self._is_over = False
        self._waiting: asyncio.Timeout | None = None
        self._since_s = 0.0
        self._n_empty = self._n_latest = 0
        """Events without a word, and those of the latest arrival, of which that is not known yet."""

    def begin(self) -> None:
        """The response's headers came: the model is at work. The time goes on, headers are no words."""
        self._has_begun = True

    def count(self, n_events: int) -> None:
        """Events arrived; if `hear` is called before the next ones are waited for, they brought something.

        Raises:
            BodyRefused: too many brought nothing.
        """
        self._n_latest += n_events
        if self._n_empty + self._n_latest > MOST_EMPTY:
            raise BodyRefused(f"sent more than {MOST_EMPTY} events without content.")

    def hear(self, *, is_last: bool = False, is_new: bool = True) -> None:
        """A word came: the time starts again.

        Args:
            is_last: the model has stopped; the time is short from then on.
            is_new: there is something new in it. What is not does not start the time again once the model has stopped.
        """
        if is_new:
            self._n_latest = 0
        if self._is_over:
            if is_new:
                self._restart(min(self.limit_s, GOODBYE_S))
            return
        if self._pauses and self._has_spoken:
            self._pauses.note(self.limit_s - self._left_now_s)
        self._has_spoken = True
        self._is_over, self._is_usual = is_last, self._is_short and not is_last
        self._restart(min(self.limit_s, GOODBYE_S) if is_last else self.limit_s)

    def excuse(self) -> None:
        """The first word is late for a reason that is known, and being seen to: its time starts again."""
        if not self._is_over:
            self._restart(self.first_s)

    def _restart(self, left_s: float) -> None:
        self._left_s, self._since_s = left_s, asyncio.get_running_loop().time()
        if self._waiting and not self._waiting.expired():
            self._waiting.reschedule(self._ends_s)

    async def next(self, events: AsyncIterator[T]) -> T | None:
        """The next event; None after the last.

        Raises:
            WorkerUnavailable: the time is over. The wait was cancelled, so whatever `events` holds open is closed.
        """
        return await self.wait(anext(events, None))

    async def wait(self, event: Awaitable[T]) -> T:
        """`event`, likewise."""
        self._n_empty, self._n_latest = self._n_empty + self._n_latest, 0
        clock = asyncio.get_running_loop().time
        self._since_s = clock()
        timeout = self._waiting = asyncio.timeout_at(self._ends_s)
        try:
            async with timeout:
                return await event
        except TimeoutError:
            if not timeout.expired():
                raise
            error = self._error(self._has_begun)
            error.only_late = self._is_usual
            raise error from None
        finally:
            self._left_s, self._waiting = max(0.0, self._left_s - (clock() - self._since_s)), None

    @property
    def _left_now_s(self) -> float:
        waited_s = asyncio.get_running_loop().time() - self._since_s if self._waiting else 0.0
        return self._left_s - waited_s

    @property
    def _ends_s(self) -> float | None:
        return None if self._left_s == inf else self._since_s + self._left_s
