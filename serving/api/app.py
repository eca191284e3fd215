"""The FastAPI application: routes, admission, error handlers and the edge."""

import logging
import os
from collections.abc import Awaitable, Callable, Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from conductor.errors import BadTask, PodiumError, UnknownName
from serving.accounts.directory import Directory
from serving.api import (
    admin,
    admin_ledger,
    batches,
    budget,
    completions,
    costs,
    count_tokens,
    feedback,
    files,
    health,
    models,
    openapi,
    workers,
    workflows,
)
from serving.api.authentication import CONSOLE, KEPT_AWAY_S, KEPT_S, Authenticator, authenticate
from serving.api.batch_line import line_sender
from serving.api.console import Console, Home
from serving.api.dialect import Dialects
from serving.api.dialects.responses import conversations
from serving.api.dialects.responses import routes as responses
from serving.api.dialects.table import DIALECTS
from serving.api.feed import Feeds
from serving.api.respond import failure
from serving.api.route_access import access_table
from serving.api.route_admission import Admission, paths_of_runs
from serving.batches.memory_store import MemoryBatchStore
from serving.batches.runner import Batches
from serving.edge import HAPROXY_ADDRESS
from serving.edge.exchange import WaitingRoom
from serving.edge.middleware import Edge, RouterChecks
from serving.edge.policy import HttpPolicy
from serving.errors import explain_fault
from serving.sessions.service import Service

Reload = Callable[[], Awaitable[None]]
logger = logging.getLogger("podium")


def build_api(
    service: Service,
    dialects: Dialects = DIALECTS,
    directory: Directory | None = None,
    reload: Reload | None = None,
    work: Batches | None = None,
) -> FastAPI:
    """Build the HTTP API over `service`. Without a `directory` it has no keys, and accepts local callers
    only. `reload` rereads the settings files, if any. Without `work`, batches are in memory.
    """
    # FastAPI's own documentation pages load scripts from a CDN, and its schema lacks the bodies that routes
    # parse themselves. `openapi.py` serves the complete schema.
    app = FastAPI(title="Podium", openapi_url=None)
    serves_when_away = service.settings().store.when_away == "serve"
    authenticator = Authenticator(directory, kept_s=KEPT_AWAY_S if serves_when_away else KEPT_S)
    app.state.service, app.state.dialects = service, dialects
    app.state.reload, app.state.directory = reload, directory
    app.state.authenticator, app.state.constants = authenticator, {}
    policies = directory.policies if directory else None
    app.state.batches = work or Batches(MemoryBatchStore(), service, policies)
    app.state.batches.send = line_sender(app)
    fixed = (
        count_tokens.router, responses.router, conversations.router, models.router, budget.router,
        workflows.router, costs.router, feedback.router, files.router, batches.router, health.router,
        workers.router, admin.router, admin_ledger.router, openapi.router,
    )  # fmt: skip
    for router in (completions.build_router(dialects), *fixed):
        # What `include_router` does for routers without prefix or tags, but without inspecting every
        # signature again.
        app.router.routes.extend(router.routes)
    app.mount(CONSOLE, Console())
    app.router.routes.append(Home())
    table = access_table(dialects)
    admission = Admission(service, table)
    app.state.feeds = Feeds(service, admission.unread)
    app.router.routes[:] = admission.guard(app.router.routes)
    app.add_exception_handler(PodiumError, _render_error)
    app.add_exception_handler(HTTPException, _render_http_error)
    app.add_exception_handler(RequestValidationError, _render_query_error)
    app.add_exception_handler(Exception, _render_internal_error)
    policy = HttpPolicy.of(service.settings())

    async def find_caller(scope: Scope) -> None:
        await authenticate(authenticator, scope)
        admission.check_read(scope)

    router_checks = RouterChecks(
        service.settings,
        paths_of_runs(table),
        service.sessions.admission.slots.check,
        find_caller,
    )
    app.add_middleware(
        Edge,
        policy=policy,
        room=WaitingRoom(policy.max_waiting, policy.max_unfinished_bytes),
        error_body=dialects.error_body,
        router=router_checks,
        address=os.environ.get(HAPROXY_ADDRESS, ""),
    )
    return app


async def _render_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, PodiumError)
    return failure(request, exc)


async def _render_http_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, HTTPException)
    error = UnknownName(
        f"There is no endpoint {request.method} {request.url.path} ({exc.detail}). GET /v1/openapi.json lists the endpoints.",
        param="path",
    )
    response = failure(request, error, exc.status_code)
    response.headers.update(exc.headers or {})
    return response


async def _render_query_error(request: Request, exc: Exception) -> Response:
    assert isinstance(exc, RequestValidationError)
    fault = exc.errors()[0]
    param = _field(fault["loc"])
    return failure(request, BadTask(f"{explain_fault(param, fault)}.", param=param))


def _field(place: Sequence[str | int]) -> str:
    """Return the invalid field, such as `limit` or `scopes[0]`, with a set's entries in the client's order."""
    names = [n for n, part in enumerate(place) if isinstance(part, str)]
    return str(place[names[-1]]) + "".join(f"[{index}]" for index in place[names[-1] + 1 :])


async def _render_internal_error(request: Request, exc: Exception) -> Response:
    """Answer an unexpected exception of a request. For those of runs, see "Errors" in docs/architecture.md."""
    logger.error("Internal error while answering a request", exc_info=exc)
    return failure(request, PodiumError(f"Internal error: {type(exc).__name__}."))
