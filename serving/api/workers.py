"""`GET /v1/workers`: slots and recent calls of the workers on this router, for administrators."""

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.api.record_json import seconds
from serving.api.respond import success
from serving.health import WorkerHealth
from serving.pool import Pool
from serving.sessions.readiness import worker_failing
from serving.sessions.service import Service

router = APIRouter()
Json = dict[str, Any]


@router.get("/v1/workers")
async def workers(request: Request) -> Response:
    """Return the slots and recent calls of each worker on this router.

    Other routers count their own calls. They share only which circuits are open.
    """
    service: Service = request.app.state.service
    return success({"object": "list", "data": [_worker(service.pool, name) for name in service.pool.members]})


def _worker(pool: Pool, name: str) -> Json:
    slots, health = pool.limiters.get(name), pool.health.get(name) or WorkerHealth()
    return {
        "id": name,
        "object": "worker",
        "slots": slots.n_slots if slots else None,
        "open_calls": slots.open_calls if slots else None,
        "queued": slots.queued if slots else None,
        "succeeded": health.successes,
        "failed": health.failures,
        "rests_s": seconds(health.skip_s),
        "circuit": health.circuit,
        "opened_elsewhere": health.is_open_elsewhere,
        "failing": worker_failing(name, health),
        "first_token_p50_s": seconds(health.first_token_s(0.5)),
        "first_token_p95_s": seconds(health.first_token_s(0.95)),
        "fallbacks": [
            {"worker": each.worker, "chosen": each.why or "in the settings"} for each in pool.fallbacks[name]
        ],
    }
