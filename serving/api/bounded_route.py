"""FastAPI route that limits the number of parts in a JSON body. Routes that parse their own bodies have the
same limit.
"""

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from serving.api.dialects.read_body import check_parts

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class BoundedRoute(APIRoute):
    """Route class for an `APIRouter` whose routes declare their bodies. FastAPI would otherwise parse a body
    before its parts are counted.
    """

    def get_route_handler(self) -> Handler:
        """Return FastAPI's handler, with the bound checked first."""
        handle = super().get_route_handler()

        async def handle_bounded(request: Request) -> Response:
            check_parts(await request.body())
            return await handle(request)

        return handle_bounded
