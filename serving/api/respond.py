"""JSON responses."""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute

from conductor.errors import PodiumError
from serving import errors
from serving.api.dialect import Dialects
from serving.api.record_json import dumps
from serving.fairness import in_slices

Item = TypeVar("Item")


def success(body: Any, headers: dict[str, str] | None = None, status: int = 200) -> Response:
    return Response(dumps(body), status, headers, "application/json")


async def constant(request: Request, make: Callable[[Sequence[BaseRoute]], Any]) -> Response:
    """Return a constant JSON response. `If-None-Match` gets a 304.

    The response is made once from the application's routes, in a thread, because this takes seconds of CPU. If that
    fails, the next request makes it again.
    """
    contents: dict[Any, asyncio.Task[tuple[bytes, str]]] = request.app.state.constants
    task = contents.get(make)
    if task is None or (task.done() and (task.cancelled() or task.exception())):
        task = contents[make] = asyncio.create_task(asyncio.to_thread(_encode, make, request.app.routes))
    content, tag = await asyncio.shield(task)
    headers = {"etag": tag, "cache-control": "private, max-age=0, must-revalidate"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, "application/json")


def _encode(make: Callable[[Sequence[BaseRoute]], Any], routes: Sequence[BaseRoute]) -> tuple[bytes, str]:
    content = dumps(make(routes))
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


async def success_list(items: Iterable[Item], show: Callable[[Item], Any], rest: dict[str, Any]) -> Response:
    """Return a list as a JSON response. `data` has `show(item)` of each item, and the fields of `rest` are
    added. A long list is encoded in slices, so that other tasks run in between.
    """
    encoded_items = [dumps(show(item)) async for item in in_slices(items)]
    head, tail = dumps({"object": "list"}), dumps(rest)
    body = b'%s,"data":[%s]%s' % (head[:-1], b",".join(encoded_items), b"," + tail[1:] if rest else b"}")
    return Response(body, 200, None, "application/json")


def failure(request: Request, error: PodiumError, status: int | None = None) -> Response:
    """Return an error response in the path's dialect, by default with its type's `status`."""
    dialects: Dialects = request.app.state.dialects
    content = dumps(dialects.error_body(error, request.scope["path"]))
    return Response(content, status or errors.row(error).status, errors.headers(error), "application/json")
