"""Budgets of a worker's calls: how many may be retries, and how many a provider accepts per minute."""

import time
from collections.abc import Callable

from serving.witnesses import MOST, Traffic

RESERVE = 10.0
"""Default capacity of a retry budget, in retries. A budget starts full, so that a few calls can always be
retried. The capacity is higher if the loss of one replica breaks more calls at once (`retry_reserve`).
"""


class RetryBudget:
    """Token bucket for the retries of one worker on this replica.

    A party may use at most half of the capacity while other parties make calls.

    Args:
        share: tokens that each call adds. A retry takes one token.
        start: tokens at the start, or None for `reserve`.
        reserve: capacity.
    """

    def __init__(self, share: float, start: float | None = None, reserve: float = RESERVE) -> None:
        self._share, self._reserve = share, reserve
        self._tokens = reserve if start is None else start
        self._traffic = Traffic()
        self._retries: dict[str, float] = {}
        """Retries by party, minus the tokens that its later calls have added."""

    def earn(self, party: str = "") -> None:
        """Add `share` tokens, because a call of `party` is attempted for the first time."""
        self._tokens = min(self._reserve, self._tokens + self._share)
        self._traffic.note(party)
        if party in self._retries:
            self._retries[party] -= self._share
            if self._retries[party] <= 0:
                del self._retries[party]

    def spend(self, party: str = "") -> bool:
        """Take a token for a retry of `party`. Return False if the budget does not allow one."""
        retries = self._retries.get(party, 0.0)
        if self._tokens < 1 or (retries + 1 > self._reserve / 2 and self._traffic.has_others(party)):
            return False
        self._tokens -= 1
        self._retries[party] = min(retries + 1, self._reserve)
        if len(self._retries) > MOST:
            del self._retries[next(iter(self._retries))]
        return True


MINUTE_S = 60.0


class TokenBucket:
    """Token bucket for a provider's rate limit.

    Its capacity is a tenth of `per_minute`, because providers also limit bursts. Amounts may be corrected
    later, so the level can become negative.

    Args:
        per_minute: refill per minute.
        clock: clock in seconds.
    """

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_minute / MINUTE_S
        self._most = max(1.0, per_minute / 10)
        self._clock, self._level, self._at_s = clock, self._most, clock()

    @property
    def wait_s(self) -> float:
        """Seconds until the next call may be sent, or 0."""
        self._fill()
        return max(0.0, (1.0 - self._level) / self._per_s)

    def take(self, amount: float) -> None:
        """Take `amount` tokens from the bucket. A negative amount is returned to it."""
        self._fill()
        self._level = min(self._most, self._level - amount)

    def _fill(self) -> None:
        now_s = self._clock()
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._per_s)
        self._at_s = now_s
