"""`GET /v1/workflows` and `GET /v1/workflows/{id}`: the records of runs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from conductor.errors import UnknownName, quote
from serving.accounts.caller import Scope
from serving.api import record_json
from serving.api.authentication import caller_of
from serving.api.respond import success
from serving.runs.service import Service

router = APIRouter()


@router.get("/v1/workflows")
async def workflows(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Response:
    """The newest runs of this replica that the caller's team asked for, also those under way; long texts
    are cut, and whole in the run's own record.
    """
    service: Service = request.app.state.service
    caller = caller_of(request)
    caller.require(Scope.READ)
    newest = await service.newest(limit, caller)
    shown = [
        record_json.shorten_workflow(run.record, run.inner, for_operator=caller.sees_every_run)
        for run in newest
    ]
    return success({"object": "list", "data": shown})


@router.get("/v1/workflows/{id}")
async def workflow(request: Request, id: str) -> Response:
    """One run, also while it goes on. Another team's is as one that is not there."""
    service: Service = request.app.state.service
    caller = caller_of(request)
    caller.require(Scope.READ)
    run = await service.records(id, caller)
    if run is None:
        raise UnknownName(f"No run {quote(id)} is kept here; the newest are at /v1/workflows.", param="id")
    return success(record_json.workflow(run.record, run.inner, for_operator=caller.sees_every_run))
