"""`GET /healthz`, `GET /readyz` and `GET /v1/replicas`."""

from fastapi import APIRouter, Request
from starlette.responses import Response

from serving.accounts.account_policy import permit_of
from serving.accounts.caller import Scope
from serving.api.authentication import CALLER, caller_of
from serving.api.respond import success
from serving.sessions.readiness import for_others
from serving.sessions.service import Service

router = APIRouter()


@router.get("/healthz")
async def healthz() -> Response:
    """Report that the router is alive. Needs no key."""
    return success({"status": "ok"})


@router.get("/v1/replicas")
async def replicas(request: Request) -> Response:
    """Return the number of replicas of each deployment, by state."""
    service: Service = request.app.state.service
    return success({"object": "replicas", "replicas": await service.replicas()})


@router.get("/readyz")
async def readyz(request: Request) -> Response:
    """Report whether the server can answer requests, and how well its workers do.

    Without a key, for probes, the response contains only the `status`. A key without the scope `admin` sees no
    details, and only the workers that its policy allows.
    """
    service: Service = request.app.state.service
    status, state = await service.readiness.state(service.pool, service.conductor_health)
    if CALLER not in request.scope:
        return success({"status": state["status"]}, status=status)
    state |= {"workers": service.settings().pool, "running": service.running}
    if service.is_store_away:
        state["store"] = "away"
    if service.refused:
        state["refused_user_config"] = service.refused
    caller = caller_of(request)
    if not caller.may(Scope.ADMIN):
        permit = permit_of(caller.policies, service.settings())
        return success(for_others(state, permit), status=status)
    if service.policy_faults:
        state["policies"] = service.policy_faults
    return success(state, status=status)
