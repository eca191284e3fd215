"""The functions of `time`, which show the time of a loop in virtual time."""

import asyncio
import time


class Clock:
    """The functions of `time`, which show the loop's time while there is a loop to follow.

    They replace the real ones for good, before anything is imported that keeps one of them, as defaults of parameters do.
    """

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self._monotonic, self._time_ns, self._time = time.monotonic, time.time_ns, time.time
        self._since_epoch_ns = self._newest_ns = 0

    def follow(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._since_epoch_ns, self._newest_ns = self._time_ns() - int(loop.time() * 1e9), 0

    def monotonic(self) -> float:
        return self._monotonic() if self.loop is None else self.loop.time()

    def time_ns(self) -> int:
        """The time of day. No two readings are the same: what happens one after the other has an order by it."""
        if self.loop is None:
            return self._time_ns()
        self._newest_ns = max(self._newest_ns + 1000, self._since_epoch_ns + int(self.loop.time() * 1e9))
        return self._newest_ns

    def time(self) -> float:
        return self._time() if self.loop is None else self.time_ns() / 1e9


CLOCK = Clock()
time.monotonic, time.time, time.time_ns = CLOCK.monotonic, CLOCK.time, CLOCK.time_ns
