"""Number and state of the replicas of an application's deployments, from Ray Serve's controller."""

import asyncio
from collections.abc import Callable

from ray import serve
from ray.serve.schema import ApplicationStatusOverview, ServeStatus

Counts = dict[str, dict[str, int]]
"""Number of replicas by deployment and by state, such as `running`, `starting` or `stopping`."""
STATUS_TTL_S = 1.0
"""Seconds for which a status is reused, because the whole cluster has only one controller."""


class Replicas:
    """Replicas of one application, as reported by Ray Serve's controller."""

    def __init__(self, application: str, status: Callable[[], ServeStatus] = serve.status) -> None:
        self._application, self._status = application, status
        self._asking = asyncio.Lock()
        self._overview: ApplicationStatusOverview | None = None
        self._overview_s = float("-inf")

    async def counts(self) -> Counts:
        """Return the replicas by deployment and state, at most `STATUS_TTL_S` seconds old."""
        overview = await self._account()
        return {
            name: {state.lower(): count for state, count in deployment.replica_states.items() if count}
            for name, deployment in (overview.deployments if overview else {}).items()
        }

    async def is_asleep(self, deployment: str) -> bool:
        overview = await self._account()
        entry = overview.deployments.get(deployment) if overview else None
        return entry is not None and entry.status == "HEALTHY" and not any(entry.replica_states.values())

    async def is_down(self, deployment: str) -> bool:
        """Return whether the deployment was healthy and has then lost all its replicas.

        Serve starts a new one in that case, which takes as long as any start.
        """
        return _is_down(await self._account(), deployment)

    async def is_still_down(self, deployment: str) -> bool:
        """Return what `is_down` returns, but ask the controller only if it was down in the last status."""
        return _is_down(self._overview, deployment) and await self.is_down(deployment)

    async def _account(self) -> ApplicationStatusOverview | None:
        """Return the status of the application. Serve's call blocks, so it runs in a thread."""
        loop = asyncio.get_running_loop()
        async with self._asking:
            if loop.time() - self._overview_s > STATUS_TTL_S:
                status = await asyncio.to_thread(self._status)
                self._overview, self._overview_s = status.applications.get(self._application), loop.time()
            return self._overview


def _is_down(overview: ApplicationStatusOverview | None, deployment: str) -> bool:
    """Return whether the deployment is down, and not starting, which Serve reports as updating or upscaling."""
    entry = overview.deployments.get(deployment) if overview else None
    return (
        entry is not None
        and entry.status in ("UNHEALTHY", "DEPLOY_FAILED")
        and not any(count for state, count in entry.replica_states.items() if state == "RUNNING")
    )
