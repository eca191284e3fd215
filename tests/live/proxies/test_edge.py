"""The edge on both real paths: Serve's own proxy, and HAProxy before the router replica."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest

from bench.server import production_environment
from cluster.local.server import Server
from loadtest.siege.cli import SETTINGS, Case, besiege, text

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

STREAM_S = 4.0
PAGE = "https://app.example.com"
HEADER_S = 3  # within it 300 connections are made and the first bytes of ten sent, on a slow machine too
HTTP = f"\nhttp: {{header_s: {HEADER_S}, stall_s: 1, origins: ['{PAGE}']}}\n"
FULL = """workers:
  - {name: full, kind: scripted, replies: [Because.], delay_s: 1, max_concurrency: 1, max_wait_s: 0.2, retry: {attempts: 1}}
"""
ASK = {"model": "quick", "messages": [{"role": "user", "content": "Why?"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


@pytest.fixture(scope="module", params=["default", "fast"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    settings = tmp_path_factory.mktemp("edge") / "siege.yaml"
    of_siege = SETTINGS.read_text().replace("${TOKENS}", text(STREAM_S)).replace("workers:\n", FULL)
    settings.write_text(of_siege + HTTP)
    env = (
        production_environment() | {"PODIUM_HAPROXY_HEADER_S": str(HEADER_S)}
        if request.param == "fast"
        else {}
    )
    with Server(settings=settings, port=0, env=env, log=Path(f"build/edge-{request.param}.log")) as started:
        yield started


async def test_a_429_comes_through_whole_with_when_to_come_back(server: Server) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:

        async def ask() -> httpx2.Response:
            return await http.post(f"{server.url}/v1/chat/completions", json={**ASK, "model": "full"})

        assert (await ask()).status_code == 200  # how long a line is, is known by the calls before
        answers = await asyncio.gather(*(ask() for _ in range(4)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert (answer.headers["content-type"], answer.json()["error"]["code"]) == (
            "application/json",
            "overloaded",
        )


def asked(server: Server, **headers: str) -> httpx2.Response:
    content = json.dumps(ASK).encode()
    return httpx2.post(
        f"{server.url}/v1/chat/completions",
        content=content,
        headers={"content-type": "application/json", **headers},
    )


def test_foreign_hosts_origins_and_content_types_are_refused_in_openais_shape(server: Server) -> None:
    refused = [
        asked(server, host="evil.example"),
        asked(server, origin="https://evil.example"),
        asked(server, **{"content-type": "text/plain"}),
    ]
    assert [answer.status_code for answer in refused] == [403, 403, 415]
    assert [answer.json()["error"]["param"] for answer in refused] == ["Host", "Origin", "Content-Type"]
    assert httpx2.get(f"{server.url}/v1/workflows", headers={"host": "evil.example"}).status_code == 403
    assert (served := asked(server, host="localhost:8000", origin=PAGE)).status_code == 200
    assert served.headers["access-control-allow-origin"] == PAGE


def sent(server: Server, data: bytes) -> socket.socket:
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=8)
    connection.sendall(data)
    return connection


def test_what_is_never_whole_is_ended_and_never_becomes_a_run(server: Server) -> None:
    silent, half, stopped = (
        sent(server, b""),
        sent(server, HEAD),
        sent(server, HEAD + b"content-length: 9\r\n\r\n{"),
    )
    large = sent(
        server, HEAD + b"content-length: 900000\r\n\r\n" + b"{" * 300_000
    )  # more than HAProxy keeps for itself
    assert silent.recv(999)[:12] in (b"", b"HTTP/1.1 408")
    for connection in (half, stopped, large):
        assert connection.recv(99).startswith(b"HTTP/1.1 408")
    assert httpx2.get(f"{server.url}/readyz").json()["running"] == 0


def test_a_header_without_end_is_refused_at_once(server: Server) -> None:
    connection, began_s = sent(server, HEAD + b"x-long: "), time.monotonic()
    with pytest.raises(ConnectionError):
        connection.sendall(b"a" * 100_000_000)
    assert time.monotonic() - began_s < 5


def test_text_that_no_model_can_read_is_a_413_and_a_picture_of_the_same_size_is_not(server: Server) -> None:
    def answer(content: object) -> httpx2.Response:
        body = {"model": "quick", "messages": [{"role": "user", "content": content}]}
        return httpx2.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)

    told = answer("word " * 3_800_000)
    assert (told.status_code, told.json()["error"]["param"]) == (413, "messages")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 1_000_000}}
    assert answer([{"type": "text", "text": "What is it?"}, picture]).status_code == 200


@asynccontextmanager
async def nothing_left(server: Server) -> AsyncIterator[None]:
    yield
    async with httpx2.AsyncClient() as http, asyncio.timeout(20):
        while (await http.get(f"{server.url}/readyz")).json()["running"]:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["idle", "unfinished", "prompts"])
async def test_ordinary_clients_are_served_beside_300_that_only_hold_on(server: Server, kind: str) -> None:
    async with nothing_left(server):
        result = await besiege(Case("", kind, addresses=2), server.url, 300, STREAM_S, streams=10)
    assert (result.whole, result.lost) == (10, ())
    assert result.answered == result.asked
