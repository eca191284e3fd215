"""`/console`: serves its files without a key, no other files, and a hint if it is not built."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette

from serving.api.console import HEADERS, NOT_BUILT, Console
from tests.serving.api.keyed import keyed
from tests.serving.api.served import listening


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with a built page, next to a secret file."""
    (folder := tmp_path / "console").mkdir()
    (folder / "index.html").write_text(
        '<!doctype html><script type="module" src="/console/console.js"></script>'
    )
    (folder / "console.js").write_text("document.title = 'Podium'")
    (folder / "console.css").write_text("body { margin: 0 }")
    (tmp_path / "secret.txt").write_text("pk_secret")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    return folder


@asynccontextmanager
async def console(folder: Path) -> AsyncGenerator[httpx2.AsyncClient]:
    app = Starlette()
    app.mount("/console", Console(folder))
    async with listening(app) as url, httpx2.AsyncClient(base_url=url, timeout=10) as http:
        yield http


async def test_the_console_has_headers_that_block_other_scripts(site: Path) -> None:
    async with console(site) as http:
        for path, kind in (("", "text/html"), ("index.html", "text/html"), ("console.js", "text/javascript"), ("console.css", "text/css")):  # fmt: skip
            answer = await http.get(f"/console/{path}")
            assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, kind)
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS
        policy = HEADERS["content-security-policy"]
        assert "unsafe" not in policy
        assert policy.startswith("default-src 'none'; script-src 'self'; ")


async def test_an_unchanged_file_returns_304(site: Path) -> None:
    async with console(site) as http:
        first = await http.get("/console/console.js")
        assert first.headers["cache-control"] == "no-cache"
        again = await http.get("/console/console.js", headers={"if-none-match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert {name: again.headers[name] for name in HEADERS} == HEADERS
        (site / "console.js").write_text("document.title = 'another'")
        newer = await http.get("/console/console.js", headers={"if-none-match": first.headers["etag"]})
        assert (newer.status_code, newer.text) == (200, "document.title = 'another'")


async def test_the_console_url_without_a_slash_redirects_to_this_server(site: Path) -> None:
    async with console(site) as http:
        answer = await http.get("/console")
        assert answer.status_code == 307
        assert answer.headers["location"] == f"{http.base_url}/console/".replace("//console", "/console")


@pytest.mark.parametrize(
    "path",
    ["../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "..%5csecret.txt", "/etc/passwd", "%2fetc%2fpasswd", "link.txt", "console.js%00.txt"],
)  # fmt: skip
async def test_no_path_can_leave_the_consoles_folder(site: Path, path: str) -> None:
    async with console(site) as http:
        answer = await http.get(f"/console/{path}")
        assert answer.status_code in (404, 405)
        assert "pk_secret" not in answer.text
        assert "root:" not in answer.text


async def test_the_console_accepts_only_get_and_head(site: Path) -> None:
    async with console(site) as http:
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert (await http.request(method, "/console/console.js")).status_code == 405
        assert (await http.head("/console/")).status_code == 200
        assert (await http.get("/console/absent.js")).status_code == 404


async def test_without_a_build_the_console_returns_503_with_the_build_command(tmp_path: Path) -> None:
    async with console(tmp_path / "absent") as http:
        for path in ("/console/", "/console/console.js"):
            answer = await http.get(path)
            assert (answer.status_code, answer.text) == (503, NOT_BUILT)
            assert "make console" in answer.text
            assert {name: answer.headers[name] for name in HEADERS} == HEADERS


async def test_the_root_redirects_browsers_to_the_console_only(tmp_path: Path) -> None:
    page = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    async with keyed(tmp_path) as it:
        for method in ("GET", "HEAD"):
            answer = await it.api.http.request(method, "/", headers=page)
            assert (answer.status_code, answer.headers["location"], answer.headers["vary"]) == (307, "/console/", "accept")  # fmt: skip
        for accept in ("*/*", "application/json"):
            headers = {"accept": accept}
            assert (await it.api.http.get("/", headers=headers)).status_code == 401
            assert (await it.ask("mine", "GET", "/", headers=headers)).status_code == 404
        assert (await it.api.http.post("/", json={}, headers=page)).status_code == 401
        assert (await it.api.http.get("/v1/workflows", headers=page)).status_code == 401


async def test_the_console_needs_no_key_and_shows_no_data(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        answer = await it.api.http.get("/console/")
        assert answer.status_code in (200, 503), "whether it is built here"
        assert "wf_" not in answer.text
        assert (await it.api.http.get("/v1/workflows")).status_code == 401
        for path in ("/console/../v1/workflows", "/console/%2e%2e/v1/workflows", "/console//v1/workflows"):
            assert (await it.api.http.get(path)).status_code in (401, 404, 503)
        foreign = await it.api.http.get("/console/", headers={"host": "evil.example"})
        assert foreign.status_code == 403
