"""`GET /healthz`, `GET /readyz` and `GET /v1/replicas`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.api.respond import success
from serving.api.service import Service

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """The router is alive."""
    return success({"status": "ok"})


@router.get("/v1/replicas")
async def replicas(request: Request) -> Response:
    """How many replicas each deployment has, by state."""
    service: Service = request.app.state.service
    return success({"object": "replicas", "replicas": await service.replicas()})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Able to answer: every vLLM engine is up, or was scaled to zero. 503 until then; says which are waited for."""
    service: Service = request.app.state.service
    waited_for = await service.pool.engines_not_ready()
    state: dict[str, object] = {"workers": service.pool.settings.pool, "running": service.running}
    if service.refused:
        state["refused_user_config"] = service.refused
    if waited_for:
        return success({"status": "starting", "waiting_for": waited_for, **state}, status=503)
    return success({"status": "ready", **state})
