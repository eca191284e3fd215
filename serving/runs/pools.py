"""The pool that serves, and those before it that still have runs: their clients are closed when the last of these has ended.

Knows how many calls the workers of all of them have; does not know what runs.
"""

from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

from serving.garbage import collect_soon
from serving.health import WorkerHealth
from serving.pool import Pool
from serving.telemetry import metrics
from serving.telemetry.measurement import Measurement, of_health


class Pools:
    """Those of one router; `current` serves new requests.

    Args:
        pool: the first.
    """

    def __init__(self, pool: Pool) -> None:
        self.current = pool
        self._in_use: list[Pool] = []
        """One for each run."""
        self._retired: list[Pool] = []
        self._levelled: set[str] = set()
        """Workers whose levels were ever reported: the gauges of one that is gone must fall to 0."""

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Pool]:
        """The pool of the moment, whose clients stay open until this is left."""
        pool = self.current
        self._in_use.append(pool)
        try:
            yield pool
        finally:
            self._in_use.remove(pool)
            await self._close_unused()

    async def swap(self, pool: Pool) -> None:
        """Serve from `pool` from now on."""
        self._retired.append(self.current)
        self.current = pool
        await self._close_unused()

    @property
    def calls(self) -> int:
        """Calls to models of all pools together, under way or waiting for a slot."""
        return sum(slots.queued + slots.open_calls for pool in self._all for slots in pool.limiters.values())

    def levels(self) -> Iterator[Measurement]:
        """How much each worker has to do at this moment, and how it is."""
        self._levelled.update(self.current.limiters)
        for name in sorted(self._levelled):
            slots = [pool.limiters[name] for pool in self._all if name in pool.limiters]
            yield Measurement(metrics.QUEUED, sum(each.queued for each in slots), (name,))
            yield Measurement(metrics.OPEN, sum(each.open_calls for each in slots), (name,))
            yield Measurement(metrics.SLOTS, sum(each.n_slots for each in slots[:1]), (name,))
            yield from of_health(name, self.current.health.get(name) or WorkerHealth())

    @property
    def _all(self) -> list[Pool]:
        return [self.current, *self._retired]

    async def _close_unused(self) -> None:
        unused = [pool for pool in self._retired if pool not in self._in_use]
        self._retired = [pool for pool in self._retired if pool in self._in_use]
        for pool in unused:
            await pool.aclose()
        if unused:
            collect_soon()
