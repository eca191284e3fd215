"""`GET /healthz`, `GET /readyz` and `GET /v1/replicas`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.accounts.caller import Scope
from serving.api.authentication import CALLER, caller_of
from serving.api.respond import success
from serving.runs.readiness import without_details
from serving.runs.service import Service

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """The router is alive."""
    return success({"status": "ok"})


@router.get("/v1/replicas")
async def replicas(request: Request) -> Response:
    """How many replicas each deployment has, by state."""
    caller_of(request).require(Scope.ADMIN)
    service: Service = request.app.state.service
    return success({"object": "replicas", "replicas": await service.replicas()})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Able to answer, and how well: see `serving.runs.readiness`. Who sends no key learns the status alone:
    probes have none.
    """
    service: Service = request.app.state.service
    status, said = await service.readiness.state(service.pool, service.conductor_health)
    if CALLER not in request.scope:
        return success({"status": said["status"]}, status=status)
    is_operator = caller_of(request).may(Scope.ADMIN)
    if "failing" in said and not is_operator:
        said["failing"] = without_details(said["failing"])
    said |= {"workers": service.pool.settings.pool, "running": service.running}
    if service.is_store_away:
        said["store"] = "away"
    if service.policy_faults and is_operator:
        said["policies"] = service.policy_faults
    if service.refused:
        said["refused_user_config"] = service.refused
    return success(said, status=status)
