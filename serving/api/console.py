"""`/console`: the web page, built from `console/` during set-up; see `cluster/local/console.py`.

Its files are public, because they contain no data. The page reads its data from the API, with the key that
its user enters.
"""

from pathlib import Path

from starlette.responses import PlainTextResponse, Response
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from serving import ROOT

FOLDER = ROOT / "build" / "console"
"""Folder of the built page."""
NOT_BUILT = "The console is not built. Run `make console` in the Podium folder. The first build needs access to the npm registry.\n"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
"""The page loads only its own scripts, styles and addresses, whatever HTML a model writes."""


class Console(StaticFiles):
    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or FOLDER
        super().__init__(directory=self._folder, html=True, check_dir=False)

    async def check_config(self) -> None:
        """Do nothing: the folder may be missing now and appear while the server runs."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or a 503 with instructions if the page is not built."""
        if (self._folder / "index.html").exists():
            response = await super().get_response(path, scope)
        else:
            response = PlainTextResponse(NOT_BUILT, 503)
        response.headers.update(HEADERS)
        return response
