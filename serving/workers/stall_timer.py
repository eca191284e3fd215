"""Limit for how long a server may send no tokens.

HTTP libraries measure the time between two bytes, so comments, pings and slow headers keep a call alive whose
model does not answer. `StallTimer` measures the time since the last token, or since the call was sent. It also
limits the number of events without content. `Patience` has the limits of engines and plugins, and `ProviderAccount`
those of APIs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import TypeVar

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from conductor.model.terms import Pauses, least
from serving.workers.event_stream import MOST_EMPTY
from serving.workers.http_guard import BodyRefused

GOODBYE_S = 10.0
"""Maximum seconds to wait for the usage after the end of an answer. The answer is complete without the usage.
"""
STALL_S = 120.0
"""Maximum seconds between two tokens of an engine, which may read long prompts or lack memory."""
FIRST_TOKEN_S = 300.0
"""Maximum seconds until an engine's first token. Half of the default deadline, so that a retry has as much."""
BATCH_S = 600.0
"""Value of both limits for batch calls, which let all other calls go first."""

T = TypeVar("T")


class StallTimer:
    """Timer that waits for the events of a server, and raises an error after `limit_s` seconds without a
    token.

    Only the time of waiting for the server counts, not the time that a slow reader takes.

    Args:
        usual_s: limit for the first token that was learned from earlier calls, or None. If the call exceeds
            it, the error is marked as `only_late`.
        pauses: object that records the pauses between tokens and has a learned limit for them, or None.
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
        """Number of events without content, and number of the newest events, whose content is not known yet.
        """

    def begin(self) -> None:
        """Record that the headers of the response arrived. This does not restart the time."""
        self._has_begun = True

    def count(self, n_events: int) -> None:
        """Count events without content, unless `hear` is called before the next wait. Raise BodyRefused for
        too many.
        """
        self._n_latest += n_events
        if self._n_empty + self._n_latest > MOST_EMPTY:
            raise BodyRefused(f"The server sent more than {MOST_EMPTY} events without content.")

    def hear(self, *, is_last: bool = False, is_new: bool = True) -> None:
        """Restart the time at a token. After the last one, only new content does, and the limit is
        `GOODBYE_S`.
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
        """Restart the time for the first token, because its delay has a known cause, such as a cold start."""
        if not self._is_over:
            self._restart(self.first_s)

    def _restart(self, left_s: float) -> None:
        self._left_s, self._since_s = left_s, asyncio.get_running_loop().time()
        if self._waiting and not self._waiting.expired():
            self._waiting.reschedule(self._ends_s)

    async def next(self, events: AsyncIterator[T]) -> T | None:
        """Return the next event, or None after the last. When time is up, the wait ends and closes the
        connection.
        """
        return await self.wait(anext(events, None))

    async def wait(self, event: Awaitable[T]) -> T:
        """Return the result of `event`. When time is up, cancel it and raise WorkerUnavailable."""
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


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits from a worker's settings, in seconds. None stands for the default."""

    stall_timeout_s: float | None = None
    first_token_timeout_s: float | None = None

    def with_engine(self, call: Call) -> StallTimer:
        """Build the timer for an engine's silence. Learned limits do not apply to batch calls."""
        yields = call.terms.priority == "batch"
        first_s = self.stall_timeout_s or (BATCH_S if yields else FIRST_TOKEN_S)
        silence_s = self.stall_timeout_s or (BATCH_S if yields else STALL_S)
        usual_s = None if yields or self.first_token_timeout_s else call.terms.limits.first_token_s
        return StallTimer(
            silence_s,
            lambda _: silent("The engine"),
            self.first_token_timeout_s or first_s,
            least(usual_s, call.terms.limits.patience_s),
            None if yields or self.stall_timeout_s else call.terms.limits.pauses,
        )

    def with_plugin(self, name: str, call: Call) -> StallTimer:
        """Build the timer for a plugin's silence. Without limits in the settings, only a fallback's time
        limits it.
        """
        silence_s = self.stall_timeout_s or inf
        return StallTimer(
            silence_s, lambda _: silent(name), self.first_token_timeout_s, call.terms.limits.patience_s
        )


USUAL = Patience()


def silent(name: str) -> WorkerUnavailable:
    """Return the error for a silent worker. The call may be retried, because silence costs nothing."""
    return WorkerUnavailable(
        f"{name} sent no output within the time limit. Try again.",
        worker=name,
        detail="Raise first_token_timeout_s or stall_timeout_s if the worker needs more time.",
    )
