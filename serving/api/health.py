"""`GET /healthz`, `GET /readyz` and `GET /v1/replicas`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.accounts.caller import Scope
from serving.accounts.permission import permit_of
from serving.api.authentication import CALLER, caller_of
from serving.api.respond import success
from serving.sessions.readiness import for_others
from serving.sessions.service import Service

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
    """Able to answer, and how well: see `serving.sessions.readiness`. Without a key, as for probes, it is the status alone;
    a key without the scope `admin` is shown no details, and only the workers of its policy.
    """
    service: Service = request.app.state.service
    status, said = await service.readiness.state(service.pool, service.conductor_health)
    if CALLER not in request.scope:
        return success({"status": said["status"]}, status=status)
    said |= {"workers": service.pool.settings.pool, "running": service.running}
    if service.is_store_away:
        said["store"] = "away"
    if service.refused:
        said["refused_user_config"] = service.refused
    caller = caller_of(request)
    if not caller.may(Scope.ADMIN):
        permit = permit_of(caller.policies, service.pool.settings)
        return success(for_others(said, permit), status=status)
    if service.policy_faults:
        said["policies"] = service.policy_faults
    return success(said, status=status)
