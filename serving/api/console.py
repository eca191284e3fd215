"""`/console`: the page for people, as set-up has built it from `console/`; see `cluster/local/console.py`.

Its files hold nothing of anybody, so they are told to everybody; what the page shows it asks of the API, with
the key that its user gives it.
"""

import re
from contextvars import ContextVar
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from serving.api.authentication import CONSOLE
from serving.paths import ROOT

FOLDER = ROOT / "build" / "console"
"""Where set-up puts the built page."""
NOT_BUILT = (
    "The console is not built here. Run `make console` in Podium's folder; it needs the npm registry once.\n"
)
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""No script, style or address but the page's own; model output could not load anything even as HTML."""


ASKED = ContextVar("asked", default="")
"""The address at which the request that is being answered was asked. No more of the request: what is begun while it
is answered, such as a batch, keeps this for as long as it runs, and is not to keep the caller's key with it.
"""
HOST = re.compile(r"[\w.-]+(:\d+)?|\[[\da-fA-F:.]+\](:\d+)?", re.ASCII)


class Addressed:
    """`app`, whose answers know at which address they were asked for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        ASKED.set(_address(scope))
        await self._app(scope, receive, send)


def console_url(run_id: str) -> str:
    """Where the page shows a run: at the address that was asked, as its client knows it. Without the address's
    beginning where no request asked, or it named no host.
    """
    return f"{ASKED.get()}{CONSOLE}/#/runs/{run_id}"


def _address(scope: Scope) -> str:
    if scope["type"] != "http":
        return ""
    headers = Headers(scope=scope)
    host = headers.get("host", "")
    if not HOST.fullmatch(host):
        return ""
    is_https = headers.get("x-forwarded-proto", scope["scheme"]) == "https"
    return f"{'https' if is_https else 'http'}://{host}{scope.get('root_path', '')}"


class Console(StaticFiles):
    """The built page.

    Args:
        folder: where it is; None: where set-up puts it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or FOLDER
        super().__init__(directory=self._folder, html=True, check_dir=False)

    async def check_config(self) -> None:
        """The folder may be missing, and may appear while the server runs."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """One of its files; where it is not built, a sentence that says how to."""
        if (self._folder / "index.html").exists():
            response = await super().get_response(path, scope)
        else:
            response = PlainTextResponse(NOT_BUILT, 503)
        response.headers.update(HEADERS)
        return response
