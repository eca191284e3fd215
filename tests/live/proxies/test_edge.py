"""Edge of both real paths: Serve's own proxy, and HAProxy in front of the router replica."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import httpx2
import pytest

from loadtest.siege.cli import Case, besiege
from loadtest.siege.servers import AttackTarget
from tests.live.proxies.conftest import PAGE, STREAM_S, Proxied

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ASK = {"model": "quick", "messages": [{"role": "user", "content": "Why?"}]}
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


async def test_a_429_reaches_the_client_with_its_retry_after_header(proxied: Proxied) -> None:
    async with httpx2.AsyncClient(timeout=30) as http:

        async def ask() -> httpx2.Response:
            return await http.post(f"{proxied.url}/v1/chat/completions", json={**ASK, "model": "full"})

        assert (await ask()).status_code == 200  # The queue's wait is estimated from earlier calls.
        answers = await asyncio.gather(*(ask() for _ in range(4)))
    refused = [answer for answer in answers if answer.status_code == 429]
    assert {answer.status_code for answer in answers} == {200, 429}
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert (answer.headers["content-type"], answer.json()["error"]["code"]) == (
            "application/json",
            "overloaded",
        )


def post_chat(proxied: Proxied, **headers: str) -> httpx2.Response:
    content = json.dumps(ASK).encode()
    return httpx2.post(
        f"{proxied.url}/v1/chat/completions",
        content=content,
        headers={"content-type": "application/json", **headers},
    )


def test_foreign_hosts_origins_and_content_types_are_rejected_as_openai_errors(proxied: Proxied) -> None:
    refused = [
        post_chat(proxied, host="evil.example"),
        post_chat(proxied, origin="https://evil.example"),
        post_chat(proxied, **{"content-type": "text/plain"}),
    ]
    assert [answer.status_code for answer in refused] == [403, 403, 415]
    assert [answer.json()["error"]["param"] for answer in refused] == ["Host", "Origin", "Content-Type"]
    assert httpx2.get(f"{proxied.url}/v1/workflows", headers={"host": "evil.example"}).status_code == 403
    assert (served := post_chat(proxied, host="localhost:8000", origin=PAGE)).status_code == 200
    assert served.headers["access-control-allow-origin"] == PAGE


def sent(proxied: Proxied, data: bytes) -> socket.socket:
    parts = urlsplit(proxied.url)
    connection = socket.create_connection((parts.hostname or "", parts.port or 0), timeout=8)
    connection.sendall(data)
    return connection


def test_an_incomplete_request_is_closed_and_never_becomes_a_run(proxied: Proxied) -> None:
    silent, half, stopped = (
        sent(proxied, b""),
        sent(proxied, HEAD),
        sent(proxied, HEAD + b"content-length: 9\r\n\r\n{"),
    )
    large = sent(
        proxied, HEAD + b"content-length: 900000\r\n\r\n" + b"{" * 300_000
    )  # more than HAProxy buffers
    assert silent.recv(999)[:12] in (b"", b"HTTP/1.1 408")
    for connection in (half, stopped, large):
        assert connection.recv(99).startswith(b"HTTP/1.1 408")
    assert httpx2.get(f"{proxied.url}/readyz").json()["running"] == 0


def test_an_endless_header_is_rejected_immediately(proxied: Proxied) -> None:
    connection, began_s = sent(proxied, HEAD + b"x-long: "), time.monotonic()
    with pytest.raises(ConnectionError):
        connection.sendall(b"a" * 100_000_000)
    assert time.monotonic() - began_s < 5


def received(proxied: Proxied, request: bytes) -> bytes:
    connection, answer = sent(proxied, request), b""
    while piece := connection.recv(65_536):
        answer += piece
    return answer


def test_a_clients_request_id_cannot_forge_a_log_line(proxied: Proxied) -> None:
    request = (
        b"GET /v1/models?a=%%1b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nx-request-id: %s\r\n\r\n"
    )
    assert b"x-request-id: chosen-1.a" in received(proxied, request % b"chosen-1.a").lower()
    for forged in (b"forged " * 100, b"forged\x9b31m", b"forged\tline"):
        answer = received(proxied, request % forged)
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 400"))
        assert b"forged" not in answer
    assert received(proxied, (request % b"a").replace(b"/v1/models", b"/%1b[31m%0aforged")).startswith(
        b"HTTP/1.1 404"
    )
    folder = proxied.server.folder
    assert folder is not None
    logs = [
        file for file in folder.path.rglob("*") if file.is_file() and file.suffix in (".log", ".out", ".err")
    ]
    assert len(logs) > 3
    for log in [*logs, proxied.server.log]:
        lines = log.read_bytes().splitlines()
        assert [
            line for line in lines if line.startswith(b"forged") or (b"forged" in line and b"\x1b" in line)
        ] == []


def test_trailers_are_limited_and_contain_no_accepted_key(proxied: Proxied) -> None:
    chunked = HEAD + b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    body = json.dumps(ASK).encode()
    whole = b"%x\r\n%s\r\n0\r\nhost: evil.example\r\ncontent-type: text/plain\r\n\r\n" % (len(body), body)
    assert received(proxied, chunked + whole).startswith(b"HTTP/1.1 200")
    connection = sent(proxied, chunked + b"0\r\nx-long: ")
    with pytest.raises(ConnectionError):
        connection.sendall(b"a" * 100_000_000)


def test_an_endless_body_of_a_get_is_rejected(proxied: Proxied) -> None:
    head = b"GET /v1/models HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000000\r\n\r\n"
    connection = sent(proxied, head + b"a" * 100_000)
    assert connection.recv(99).startswith(b"HTTP/1.1 413")
    with pytest.raises(ConnectionError):
        connection.sendall(b"a" * 400_000_000)


@pytest.mark.parametrize(
    "request_line",
    [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0", b"CONNECT example.com:443 HTTP/1.1\r\n\r\n"],
)
def test_neither_http_2_nor_connect_is_served(proxied: Proxied, request_line: bytes) -> None:
    assert sent(proxied, request_line).recv(99).startswith(b"HTTP/1.1 400")


def test_a_text_too_long_for_every_model_returns_413_but_not_an_image(proxied: Proxied) -> None:
    def answer(content: object) -> httpx2.Response:
        body = {"model": "quick", "messages": [{"role": "user", "content": content}]}
        return httpx2.post(f"{proxied.url}/v1/chat/completions", json=body, timeout=60)

    rejection = answer("word " * 3_800_000)
    assert (rejection.status_code, rejection.json()["error"]["param"]) == (413, "messages")
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "iVBORw0K" * 1_000_000}}
    assert answer([{"type": "text", "text": "What is it?"}, picture]).status_code == 200


@asynccontextmanager
async def without_leftovers(proxied: Proxied) -> AsyncIterator[None]:
    yield
    async with httpx2.AsyncClient(timeout=None) as http, asyncio.timeout(60):
        while (await http.get(f"{proxied.url}/readyz")).json()["running"]:
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("kind", ["idle", "unfinished", "prompts"])
async def test_clients_are_served_while_300_others_hold_connections_open(proxied: Proxied, kind: str) -> None:
    async with without_leftovers(proxied):
        result = await besiege(
            Case("", kind, addresses=2), AttackTarget(proxied.url), 300, STREAM_S, streams=10
        )
    assert (result.whole, result.lost) == (10, ())
    assert result.answered == result.n_requests
