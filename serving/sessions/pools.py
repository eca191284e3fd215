"""The current pool of workers, and earlier pools that active runs still use.

The connections of a pool are closed after its last run.
"""

from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager

from serving.garbage import collect_soon
from serving.health import WorkerHealth
from serving.pool import Pool
from serving.sessions.conductor_health import ConductorHealth
from serving.telemetry import metrics
from serving.telemetry.measurement import Measurement, of_health


class Pools:
    """Pools of one router. The pool `current` serves new requests.

    Args:
        pool: the first pool.
    """

    def __init__(self, pool: Pool) -> None:
        self.current = pool
        self.conductor_health = ConductorHealth()
        """Health of the current pool's conductor.

        It depends on the conductor's prompts, key and team, unlike the health of workers. Operators can fix
        these with new settings, so the count restarts with each pool.
        """
        self._n_using = Counter[Pool]()
        self._retired: list[Pool] = []
        self._levelled: set[str] = set()
        """Names of all workers that were ever reported. The gauges of a removed worker must fall to 0."""

    @asynccontextmanager
    async def using(self) -> AsyncGenerator[Pool]:
        """Use the current pool. Its connections stay open until the end of the block."""
        pool = self.current
        self._n_using[pool] += 1
        try:
            yield pool
        finally:
            self._n_using[pool] -= 1
            await self._close_unused()

    async def swap(self, pool: Pool) -> None:
        """Use `pool` for new requests, and close the previous pool after its last run."""
        self._retired.append(self.current)
        self.current, self.conductor_health = pool, ConductorHealth()
        await self._close_unused()

    @property
    def calls(self) -> int:
        """Number of open and queued calls of all pools."""
        return sum(slots.queued + slots.open_calls for pool in self._all for slots in pool.limiters.values())

    def levels(self) -> Iterator[Measurement]:
        """Yield the gauges of the load and the health of each worker."""
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
        unused = [pool for pool in self._retired if not self._n_using[pool]]
        self._retired = [pool for pool in self._retired if self._n_using[pool]]
        for pool in unused:
            del self._n_using[pool]
            await pool.aclose()
        if unused:
            collect_soon()
