"""JSON out."""

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from conductor.errors import PodiumError
from serving import errors
from serving.api.dialect import Dialects
from serving.api.encode import dumps


def success(body: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """`body` as JSON."""
    return Response(dumps(body), status, headers, "application/json")


def failure(request: Request, error: PodiumError, status: int | None = None) -> Response:
    """`error` in the dialect of the request's path, under its status in the table unless another is given."""
    dialects: Dialects = request.app.state.dialects
    content = dumps(dialects.error_body(error, request.scope["path"]))
    return Response(content, status or errors.row(error).status, errors.headers(error), "application/json")
