"""Number and state of the replicas of an application's deployments, from Ray Serve's controller."""

import asyncio
from collections.abc import Callable

from ray import serve
from ray.serve.schema import ApplicationStatusOverview, ServeStatus

Counts = dict[str, dict[str, int]]
"""Deployment -> state (`running`, `starting`, `stopping`, ...) -> count."""
STATUS_TTL_S = 1.0
"""How long a status is reused. The whole cluster has one controller to ask."""


class Replicas:
    """Replicas of one application, as reported by Ray Serve's controller."""

    def __init__(self, application: str, status: Callable[[], ServeStatus] = serve.status) -> None:
        self._application, self._status = application, status
        self._asking = asyncio.Lock()
        self._overview: ApplicationStatusOverview | None = None
        self._overview_s = float("-inf")

    async def counts(self) -> Counts:
        """Return the current counts, at most `STATUS_TTL_S` old."""
        overview = await self._account()
        return {
            name: {state.lower(): count for state, count in deployment.replica_states.items() if count}
            for name, deployment in (overview.deployments if overview else {}).items()
        }

    async def is_asleep(self, deployment: str) -> bool:
        """Return whether the deployment is healthy and scaled to zero."""
        overview = await self._account()
        entry = overview.deployments.get(deployment) if overview else None
        return entry is not None and entry.status == "HEALTHY" and not any(entry.replica_states.values())

    async def is_down(self, deployment: str) -> bool:
        """Return whether the deployment was healthy and has lost every replica. Serve then starts a new one,
        which takes as long as any start.
        """
        return _is_down(await self._account(), deployment)

    async def is_still_down(self, deployment: str) -> bool:
        """Like `is_down`, but ask the controller only if the last status was down."""
        return _is_down(self._overview, deployment) and await self.is_down(deployment)

    async def _account(self) -> ApplicationStatusOverview | None:
        """Return the status, from a thread because Serve's call blocks."""
        loop = asyncio.get_running_loop()
        async with self._asking:
            if loop.time() - self._overview_s > STATUS_TTL_S:
                status = await asyncio.to_thread(self._status)
                self._overview, self._overview_s = status.applications.get(self._application), loop.time()
            return self._overview


def _is_down(overview: ApplicationStatusOverview | None, deployment: str) -> bool:
    """Return whether the deployment is down. One that starts, for the first time or from zero, is not: Serve
    reports it as updating or upscaling.
    """
    entry = overview.deployments.get(deployment) if overview else None
    return (
        entry is not None
        and entry.status in ("UNHEALTHY", "DEPLOY_FAILED")
        and not any(count for state, count in entry.replica_states.items() if state == "RUNNING")
    )
