"""Slots of a worker that is reached at several places: as many calls at once as those take together that are well."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from math import inf

from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.worker import Worker
from serving.layers.balancing import Deployment
from serving.layers.limited import Limited


class Together(Limited):
    """`worker`, which chooses among `deployments`: all its calls wait here, in one line, whose length says how long. What
    each deployment can take changes with what it answers (`Adaptive`), so it is looked at with each call that comes or
    goes. Never more than `slots`.
    """

    def __init__(
        self, worker: Worker, deployments: Sequence[Deployment], slots: int, max_wait_s: float = inf
    ) -> None:
        super().__init__(worker, slots, max_wait_s)
        self._most, self._deployments = slots, deployments
        self._look()

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Limited.open`."""
        self._look()
        try:
            async with super().open(call) as reply:
                self._look()
                yield reply
        finally:
            self._look()

    def _look(self) -> None:
        """Where none is well, each of them may still be tried."""
        well = [each for each in self._deployments if not (each.health.rest_s or each.wait_s)]
        slots = min(self._most, sum(each.limiter.n_slots for each in well or self._deployments))
        if slots != self.n_slots:
            self.resize(slots)
