"""How many replicas each deployment of an application has, by Ray Serve's own account."""

import asyncio

from ray import serve

Replicas = dict[str, dict[str, int]]
"""Deployment -> state (`running`, `starting`, `stopping`, ...) -> count."""


async def replicas_of(application: str) -> Replicas:
    """As of now. A call to Serve's controller, in a thread because it blocks."""
    status = await asyncio.to_thread(serve.status)
    known = status.applications.get(application)
    return {
        name: {state.lower(): count for state, count in deployment.replica_states.items() if count}
        for name, deployment in (known.deployments if known else {}).items()
    }
