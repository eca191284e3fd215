"""`GET /v1/workflows` and `GET /v1/workflows/{id}`: the records of runs."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from conductor.errors import UnknownName, quote
from serving.api import record_json
from serving.api.respond import success
from serving.runs.service import Service

router = APIRouter()


@router.get("/v1/workflows")
async def workflows(request: Request, limit: Annotated[int, Query(ge=1, le=1000)] = 20) -> Response:
    """The newest runs of this replica, also those under way; long texts are cut, and whole in the run's own
    record.
    """
    service: Service = request.app.state.service
    newest = await service.newest(limit)
    return success(
        {"object": "list", "data": [record_json.shorten_workflow(run.record, run.inner) for run in newest]}
    )


@router.get("/v1/workflows/{id}")
async def workflow(request: Request, id: str) -> Response:
    """One run, also while it goes on."""
    service: Service = request.app.state.service
    run = await service.records(id)
    if run is None:
        raise UnknownName(f"No run {quote(id)} is kept here; the newest are at /v1/workflows.", param="id")
    return success(record_json.workflow(run.record, run.inner))
