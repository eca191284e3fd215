"""`/console`: the page for people, as set-up has built it from `console/`; see `cluster/local/console.py`.

Its files hold nothing of anybody, so they are told to everybody; what the page shows it asks of the API, with
the key that its user gives it.
"""

from pathlib import Path

from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

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


def console_url(run_id: str) -> str:
    """Where the page shows a run, from the address of whatever server is asked: the same on each replica, however it is
    reached.
    """
    return f"{CONSOLE}/#/runs/{run_id}"


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
