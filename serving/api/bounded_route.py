"""A route of FastAPI's whose body has no more parts than are read at once, as a body that is read by hand."""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from serving.api.dialects.read_body import check_parts

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BoundedRoute(APIRoute):
    """For an `APIRouter` whose routes name their bodies: FastAPI parses these before anything of ours is asked."""

    def get_route_handler(self) -> Handler:
        """FastAPI's, behind the bound."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            check_parts(await request.body())
            return await handle(request)

        return handle_bounded
