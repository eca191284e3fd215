"""How many retries are left, rates of calls, and why targets are skipped."""

import time
from collections.abc import Callable

from conductor.errors import WorkerUnavailable
from serving.witnesses import MOST, Traffic

RESERVE = 10.0
"""Tokens at the start, and at most: a few calls may be retried whatever the share is. More where one machine that is
lost breaks more calls at once, and the others have room for them."""


class RetryBudget:
    """One worker's, in one router replica.

    Args:
        share: of a retry that each call pays for.
        start: how many are there at the beginning; None: the reserve.
        reserve: the most that there are, and how many at the beginning where `start` does not say.
    """

    def __init__(self, share: float, start: float | None = None, reserve: float = RESERVE) -> None:
        self._share, self._reserve = share, reserve
        self._tokens = reserve if start is None else start
        self._traffic = Traffic()
        self._taken: dict[str, float] = {}
        """By parties that have taken more than they paid for since."""

    def earn(self, party: str = "") -> None:
        """`party` makes a call for the first time."""
        self._tokens = min(self._reserve, self._tokens + self._share)
        self._traffic.note(party)
        if party in self._taken:
            self._taken[party] -= self._share
            if self._taken[party] <= 0:
                del self._taken[party]

    def spend(self, party: str = "") -> bool:
        """Whether `party` may make a call again; it is counted then."""
        taken = self._taken.get(party, 0.0)
        if self._tokens < 1 or (taken + 1 > self._reserve / 2 and self._traffic.has_others(party)):
            return False
        self._tokens -= 1
        self._taken[party] = min(taken + 1, self._reserve)
        if len(self._taken) > MOST:
            del self._taken[next(iter(self._taken))]
        return True

    def refund(self) -> None:
        """What was spent was not needed."""
        self._tokens = min(self._reserve, self._tokens + 1)


class Skipped(WorkerUnavailable):
    """The worker's circuit opened while the call waited, or another worker would answer at once: that one is tried
    instead. The last of `attempts` says so.
    """

    retryable = False
    only_this_call = True
    skipped_for: str = ""
    """The worker that would answer at once."""
    waited_s: float = 0.0
    """Seconds in the queue that the call left."""


MINUTE_S = 60.0


class Rate:
    """A bucket that fills evenly, `per_minute` in a minute, and holds a tenth of that at most: what is sent at
    once is a burst, and a provider counts those.

    What is taken may be corrected later, and more may be owed then than is there.

    Args:
        per_minute: how much.
        clock: in seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / MINUTE_S
        self._most = max(1.0, per_minute / 10)
        self._clock, self._level, self._at_s = clock, self._most, clock()

    @property
    def wait_s(self) -> float:
        """How long until something may be sent; 0: now."""
        self._fill()
        return max(0.0, (1.0 - self._level) / self._per_s)

    def take(self, amount: float) -> None:
        """Count `amount` as sent; give it back where it is below 0."""
        self._fill()
        self._level = min(self._most, self._level - amount)

    def _fill(self) -> None:
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
