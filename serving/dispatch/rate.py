"""How much may be sent in a minute. Knows no worker."""

import time
from collections.abc import Callable

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
