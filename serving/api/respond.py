"""JSON out."""

from typing import Any

from starlette.responses import Response

from conductor.errors import PodiumError
from serving import errors
from serving.api.encode import dumps


def success(body: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    """`body` as JSON."""
    return Response(dumps(body), status, headers, "application/json")


def failure(error: PodiumError, status: int | None = None) -> Response:
    """`error` in OpenAI's shape, under its status in the table unless another is given."""
    told = dumps(errors.body(error))
    return Response(told, status or errors.row(error).status, errors.headers(error), "application/json")
