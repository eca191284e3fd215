"""`GET /healthz` and `GET /readyz`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.api.respond import success
from serving.api.service import Service

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """The router is alive."""
    return success({"status": "ok"})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Able to answer. Ray Serve routes to a replica only once all that it needs is up, so to be asked is to be ready."""
    service: Service = request.app.state.service
    return success({"status": "ready", "workers": service.pool.settings.pool, "running": service.running})
