"""Slots of a worker that is reached at several places: as many calls at once as those take together that are well."""

import asyncio
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
        self._timer: asyncio.TimerHandle | None = None
        self._look()

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        """See `Limited.open`."""
        self._look()
        try:
            async with super().open(call) as reply:
                yield reply
        finally:
            self._keep_looking()

    def _look(self) -> None:
        """Where none is well, each of them may still be tried; one that may be well again is tried by one call."""
        well = [each for each in self._deployments if not _left_alone_s(each)]
        slots = [
            1 if each.health.circuit == "half_open" else each.limiter.n_slots
            for each in well or self._deployments
        ]
        if self.n_slots != (n := min(self._most, sum(slots))):
            self.resize(n)

    def _keep_looking(self) -> None:
        """Look, and again when the next one of those that are left alone may be asked."""
        self._look()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rests_s = [rest_s for each in self._deployments if (rest_s := _left_alone_s(each))]
        if rests_s:
            self._timer = asyncio.get_running_loop().call_later(min(rests_s), self._keep_looking)


def _left_alone_s(deployment: Deployment) -> float:
    return max(deployment.health.rest_s, deployment.wait_s)
