"""The routes put together."""

import logging

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from conductor.errors import BadTask, PodiumError, UnknownName
from serving.api import completions, health, models, workflows
from serving.api.respond import failure
from serving.edge.middleware import Edge
from serving.edge.policy import Policy
from serving.edge.waiting import WaitingRoom
from serving.runs.service import Service

logger = logging.getLogger("podium")


def build_api(service: Service) -> FastAPI:
    """The HTTP API over `service`."""
    # FastAPI's own pages for its schema load scripts from a CDN, and the schema knows no bodies: both are
    # read by hand.
    app = FastAPI(title="Podium", openapi_url=None)
    app.state.service = service
    for router in (completions.router, models.router, workflows.router, health.router):
        app.include_router(router)
    app.add_exception_handler(PodiumError, _render_error)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _query)
    app.add_exception_handler(Exception, _defect)
    policy = Policy.of(service.pool.settings)
    app.add_middleware(Edge, policy=policy, room=WaitingRoom(policy.max_waiting, policy.max_unfinished_bytes))
    return app


async def _render_error(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, PodiumError)
    return failure(exc)


async def _http(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    error = UnknownName(
        f"{request.method} {request.url.path} is not served here: {exc.detail}.", param="path"
    )
    told = failure(error, exc.status_code)
    told.headers.update(exc.headers or {})
    return told


async def _query(_: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    fault = exc.errors()[0]
    param = str(fault["loc"][-1])
    return failure(BadTask(f"{param}: {fault['msg']}.", param=param))


async def _defect(_: Request, exc: Exception) -> Response:
    """What nobody foresaw. The other catcher is the driver of a run (`conductor/run/rounds.py`)."""
    logger.error("internal error", exc_info=exc)
    return failure(PodiumError(f"Internal error: {type(exc).__name__}."))
