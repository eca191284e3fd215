"""How many replicas each deployment of an application has, by Ray Serve's own account."""

import asyncio
from collections.abc import Callable

from ray import serve
from ray.serve.schema import ApplicationStatusOverview, ServeStatus

Counts = dict[str, dict[str, int]]
"""Deployment -> state (`running`, `starting`, `stopping`, ...) -> count."""
KEPT_S = 1.0
"""An account is good for so long, however many ask: it is a call to the one controller of the cluster."""


class Replicas:
    """Those of one application, as they are, whatever settings or Serve file they were meant to follow."""

    def __init__(self, application: str, status: Callable[[], ServeStatus] = serve.status) -> None:
        self._application, self._status = application, status
        self._asking = asyncio.Lock()
        self._known: ApplicationStatusOverview | None = None
        self._known_s = float("-inf")

    async def counts(self) -> Counts:
        """As of now, or a second ago."""
        known = await self._account()
        return {
            name: {state.lower(): count for state, count in deployment.replica_states.items() if count}
            for name, deployment in (known.deployments if known else {}).items()
        }

    async def is_asleep(self, deployment: str) -> bool:
        """Whether it is well and has no replica at all: scaled to zero, until a call wants one."""
        known = await self._account()
        found = known.deployments.get(deployment) if known else None
        return found is not None and found.status == "HEALTHY" and not any(found.replica_states.values())

    async def is_down(self, deployment: str) -> bool:
        """Whether it was well and has lost every replica: Serve starts another, which takes as long as a
        start takes.
        """
        return _is_down(await self._account(), deployment)

    async def is_still_down(self, deployment: str) -> bool:
        """As `is_down`, without a question where nobody has found it down."""
        return _is_down(self._known, deployment) and await self.is_down(deployment)

    async def _account(self) -> ApplicationStatusOverview | None:
        """The controller's, asked in a thread because it blocks."""
        loop = asyncio.get_running_loop()
        async with self._asking:
            if loop.time() - self._known_s > KEPT_S:
                status = await asyncio.to_thread(self._status)
                self._known, self._known_s = status.applications.get(self._application), loop.time()
            return self._known


def _is_down(known: ApplicationStatusOverview | None, deployment: str) -> bool:
    """One that has yet to come up, for the first time or from zero, is not: Serve calls those updating and
    upscaling.
    """
    found = known.deployments.get(deployment) if known else None
    return (
        found is not None
        and found.status in ("UNHEALTHY", "DEPLOY_FAILED")
        and not any(count for state, count in found.replica_states.items() if state == "RUNNING")
    )
