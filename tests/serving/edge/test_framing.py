"""Framing of requests: headers, chunks, trailers, pipelining and odd methods. Uses raw sockets, against the protocol
class of Serve's proxy and that of a replica's own port.
"""

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from serving.api.dialects.table import DIALECTS
from serving.edge.checks import SERVE_FORMATS, SERVE_ID
from serving.edge.exchange import WaitingRoom
from serving.edge.middleware import READS_AT_ONCE, UNREAD_BYTES, Edge
from serving.edge.policy import HttpPolicy
from serving.edge.protocol import (
    BYTES_PER_PIECE,
    FREE_PIECES,
    MAX_HEADERS,
    MAX_PIPELINED,
    EdgeProtocol,
    ReaderProtocol,
    guard_protocol,
)
from serving.settings.settings import parse
from tests.serving.api.served import team
from tests.states import until

HOST = b"host: localhost\r\n"
CHUNKED = (
    b"POST /v1/echo HTTP/1.1\r\n"
    + HOST
    + b"content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n"
)
LENGTH = CHUNKED.replace(b"transfer-encoding: chunked", b"content-length: %d")
HEALTH = b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n"
PIECE = b"a" * 100_000
BASES = pytest.mark.parametrize("base", [EdgeProtocol, ReaderProtocol])
Base = type[EdgeProtocol]


class Echo:
    """App that answers with the headers and the body length. `/v1/slow` ends later, and `/v1/late` begins later."""

    def __init__(self) -> None:
        self.port = 0
        self.requests = list[tuple[str, dict[str, str], int]]()
        self.go_on = asyncio.Event()
        self.protocols: set[Any] = set()
        self.room = WaitingRoom(4096, 256_000_000)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        length = 0
        while (message := await receive())["type"] == "http.request":
            length += len(message.get("body", b""))
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        self.requests.append((scope["path"], headers, length))
        if scope["path"] == "/v1/late":
            await self.go_on.wait()
        await send(
            {
                "type": "http.response.start",
                "status": 200,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        if scope["path"] == "/v1/slow":
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await self.go_on.wait()
        await send({"type": "http.response.body", "body": json.dumps(headers).encode()})


@asynccontextmanager
async def listening(base: Base, **http: Any) -> AsyncGenerator[Echo]:
    echo = Echo()
    policy = HttpPolicy.of(parse(team(http=http)))
    protocol = guard_protocol(policy, echo.room, DIALECTS.error_body, base)
    app = Edge(echo, policy, WaitingRoom(4096, 256_000_000), DIALECTS.error_body)
    config = uvicorn.Config(app, http=protocol, log_level="critical", lifespan="off", ws="none", port=0, timeout_keep_alive=60)  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    echo.port = server.servers[0].sockets[0].getsockname()[1]
    echo.protocols = server.server_state.connections
    try:
        yield echo
    finally:
        server.servers[0].close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()


async def exchange(echo: Echo, *pieces: bytes, apart: bool = False) -> tuple[int, bytes]:
    """Send `pieces`. Return the first status, and everything that the server sends until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            if apart:
                await asyncio.sleep(0)
    received = b""
    async with asyncio.timeout(20):
        with contextlib.suppress(ConnectionError):
            while piece := await reader.read(65_536):
                received += piece
    writer.close()
    return int((received.split() or [b"", b"0"])[1]), received


def error_of(received: bytes) -> dict[str, Any]:
    return json.loads(received.rpartition(b"\r\n\r\n")[2])["error"]


def closing(request: bytes) -> bytes:
    return request.replace(b"\r\n", b"\r\nconnection: close\r\n", 1)


@BASES
async def test_trailers_never_become_headers(base: Base) -> None:
    trailers = b"authorization: Bearer forged\r\ncontent-type: text/plain\r\nx-forwarded-for: 127.0.0.1\r\n"
    async with listening(base) as echo:
        request = CHUNKED + b"2\r\n{}\r\n0\r\n" + trailers + b"\r\n"
        assert (await exchange(echo, request + request + closing(HEALTH)))[0] == 200
        assert [path for path, _, _ in echo.requests] == ["/v1/echo", "/v1/echo", "/healthz"]
        for _, headers, _ in echo.requests:
            assert not headers.keys() & {"authorization", "x-forwarded-for"}
            assert headers.get("content-type") in ("application/json", None)


@BASES
@pytest.mark.parametrize("method", [b"POST", b"GET", b"DELETE"])
@pytest.mark.parametrize(
    "pieces",
    [
        [b"0\r\nx-trailer: ", PIECE],
        [b"0\r\n", b"x" * 100_000],
        [b"0\r\n", b"x: y\r\n" * 20_000],
        [b"1;extension=", PIECE],
        [b"1;a" + b"b" * 6_000 + b"\r\na\r\n"] * 10,
        [b"1;a=b\r\na\r\n" * 10, *[b"2;name=" + b"v" * 1_000 + b"\r\n{}\r\n"] * 100],
    ],
    ids=["value", "name", "many", "extension", "extensions", "short_extensions"],
)
async def test_trailers_and_chunk_extensions_have_the_limit_of_headers(
    base: Base, method: bytes, pieces: list[bytes]
) -> None:
    async with listening(base) as echo:
        n_bytes = 0

        async def send(writer: asyncio.StreamWriter) -> None:
            nonlocal n_bytes
            writer.write(CHUNKED.replace(b"POST", method))
            for piece in [*pieces, *pieces[-1:] * 100]:
                writer.write(piece)
                await writer.drain()
                n_bytes += len(piece)

        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        sending = asyncio.create_task(send(writer))
        async with asyncio.timeout(20):
            head = await reader.readuntil(b"\r\n\r\n")
            body = json.loads(
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
            )
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.close()
        assert head.startswith(b"HTTP/1.1 431"), head
        assert "http.max_header_bytes" in body["error"]["message"]
        assert echo.requests == []
        await until(lambda: not len(echo.room))


@BASES
async def test_the_number_of_headers_is_limited(base: Base) -> None:
    def request(count: int) -> bytes:
        return closing(HEALTH)[:-2] + b"a:\r\n" * (count - 2) + b"\r\n"

    async with listening(base) as echo:
        assert (await exchange(echo, request(MAX_HEADERS)))[0] == 200
        status, received = await exchange(echo, request(MAX_HEADERS + 1))
        assert (status, error_of(received)["param"]) == (431, "headers")
        assert (await exchange(echo, HEALTH[:-2] + b"a:\r\n" * 60_000))[0] == 431
        assert (await exchange(echo, HEALTH.replace(b"/healthz", b"/" + b"a" * 60_000)))[0] == 431


@BASES
async def test_thousands_of_one_byte_chunks_return_400(base: Base) -> None:
    async with listening(base) as echo:
        few = CHUNKED + b"1\r\n \r\n" * 3_000 + b"2\r\n{}\r\n0\r\n\r\n" + closing(HEALTH)
        assert (await exchange(echo, few))[0] == 200
        status, received = await exchange(echo, CHUNKED, *[b"1\r\n \r\n" * 1_000] * 100)
        assert (status, error_of(received)["param"]) == (400, "body")
        assert str(BYTES_PER_PIECE) in error_of(received)["message"]
        assert len(echo.requests) == 2


@BASES
@pytest.mark.parametrize("head", [CHUNKED, LENGTH % 100_000])
async def test_thousands_of_one_byte_packets_return_400(base: Base, head: bytes) -> None:
    """Feeds the protocol directly, because the kernel would join waiting packets."""
    async with listening(base) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        writer.write(head)
        await until(lambda: len(echo.room) == 1)
        (protocol,) = echo.protocols
        await until(lambda: protocol.scope is not None and "path" in protocol.scope)
        for number in range(2 * FREE_PIECES):
            protocol.data_received(b" " if head != CHUNKED else b"1\r\n \r\n"[number % 6 : number % 6 + 1])
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"400"
        writer.close()


@BASES
async def test_any_number_of_ordinary_chunks_is_accepted(base: Base) -> None:
    async with listening(base) as echo:
        chunk = b"%x\r\n%s\r\n" % (200, b" " * 200)
        body = [chunk * 100] * 150  # 3 MB
        assert (await exchange(echo, CHUNKED, *body, b"2\r\n{}\r\n0\r\n\r\n", closing(HEALTH)))[0] == 200
        assert echo.requests[0][2] == 3_000_002


@BASES
@pytest.mark.parametrize("path", [b"/v1/slow", b"/healthz"])
@pytest.mark.parametrize("method", [b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"PROPFIND"])
@pytest.mark.parametrize("framing", [b"content-length: 1000000000", b"transfer-encoding: chunked"])
async def test_an_endless_body_of_a_bodyless_method_is_not_read(
    base: Base, path: bytes, method: bytes, framing: bytes
) -> None:
    request = method + b" " + path + b" HTTP/1.1\r\n" + HOST + framing + b"\r\n\r\n"
    piece = PIECE if b"length" in framing else b"%x\r\n%s\r\n" % (len(PIECE), PIECE)
    async with listening(base) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        writer.write(request + piece)
        async with asyncio.timeout(10):
            is_allowed = path == b"/v1/slow" or method in (b"GET", b"HEAD")
            status = b"413" if is_allowed else b"405"
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 " + status)
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0)
        assert echo.requests == []
        writer.close()


@BASES
@pytest.mark.parametrize("method", [b"GET", b"DELETE"])
async def test_a_short_body_of_a_bodyless_method_is_ignored(base: Base, method: bytes) -> None:
    async with listening(base) as echo:
        request = method + b" /v1/files/a HTTP/1.1\r\n" + HOST + b"content-length: %d\r\n\r\n"
        short = request % UNREAD_BYTES + b" " * UNREAD_BYTES
        assert (await exchange(echo, short + closing(HEALTH)))[0] == 200
        assert [path for path, _, _ in echo.requests] == ["/v1/files/a", "/healthz"]
        assert (await exchange(echo, closing(request % (UNREAD_BYTES + 1)) + b" " * (UNREAD_BYTES + 1)))[
            0
        ] == 413


@BASES
async def test_input_during_a_streamed_answer_is_limited(base: Base) -> None:
    slow = HEALTH.replace(b"/healthz", b"/v1/slow")
    async with listening(base) as echo:
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        writer.write(slow)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEALTH * 5_000)
        await until(
            lambda: bool(next(iter(echo.protocols)).pipeline) or next(iter(echo.protocols))._is_refused
        )
        assert len(next(iter(echo.protocols)).pipeline) <= MAX_PIPELINED
        echo.go_on.set()
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionError):
                # The current answer ends, then the connection.
                assert (await reader.read()).count(b"HTTP/1.1") == 0
        assert len(echo.requests) == 1
        writer.close()


@BASES
async def test_pipelined_requests_are_answered_in_order_up_to_a_limit(base: Base) -> None:
    async with listening(base) as echo:
        paths = [b"/v1/%d" % number for number in range(MAX_PIPELINED)]
        requests = [HEALTH.replace(b"/healthz", path) for path in paths]
        requests[-1] = closing(requests[-1])
        assert (await exchange(echo, b"".join(requests)))[1].count(b"HTTP/1.1 200") == MAX_PIPELINED
        assert [path.encode() for path, _, _ in echo.requests] == paths


@BASES
async def test_a_request_followed_by_invalid_data_is_answered(
    base: Base,
) -> None:
    async with listening(base) as echo:
        status, received = await exchange(echo, HEALTH + b"no http\r\n\r\n")
        assert (status, received.count(b"HTTP/1.1")) == (200, 1)


@BASES
@pytest.mark.parametrize(
    "request_line",
    [
        b"CONNECT example.com:443 HTTP/1.1", b"CONNECT /v1/models HTTP/1.1", b"PRI * HTTP/2.0", b"get / HTTP/1.1",
        b"A" * 1000 + b" / HTTP/1.1", b"GET localhost:80 HTTP/1.1", b"\x1b[31m / HTTP/1.1",
    ],
    ids=range(7),
)  # fmt: skip
async def test_an_invalid_method_or_target_returns_400_and_closes(base: Base, request_line: bytes) -> None:
    async with listening(base) as echo:
        for framing in (b"", b"content-length: 5\r\n"):
            status, received = await exchange(echo, request_line + b"\r\n" + HOST + framing + b"\r\n")
            assert (status, error_of(received)["type"]) == (400, "invalid_request_error")
        assert echo.requests == []


@BASES
async def test_an_upgrade_with_a_body_returns_400(base: Base) -> None:
    """httptools reads no body after an upgrade, and would parse the body as the next request."""
    upgrade = b"connection: upgrade\r\nupgrade: h2c\r\n"
    async with listening(base) as echo:
        request = LENGTH.replace(HOST, HOST + upgrade) % len(HEALTH)
        reader, writer = await asyncio.open_connection("127.0.0.1", echo.port)
        writer.write(request)
        assert (await reader.readuntil(b"\r\n")).split()[1] == b"400"
        writer.write(HEALTH)
        with contextlib.suppress(ConnectionError):
            await reader.read()
        writer.close()
        assert (await exchange(echo, HEALTH.replace(HOST, HOST + upgrade), HEALTH))[1].count(b"HTTP/1.1") == 1
        assert len(echo.requests) == 1


@BASES
async def test_an_error_instead_of_100_continue_closes_the_connection(base: Base) -> None:
    """The client may skip its body, and its next request would be read as the body."""
    request = LENGTH % 10**9
    async with listening(base) as echo:
        status, received = await exchange(echo, request[:-2] + b"expect: 100-continue\r\n\r\n")
        assert (status, b"connection: close" in received) == (413, True)


@BASES
@pytest.mark.parametrize("line", [b"PUT /healthz", b"GET /readyz", b"POST /v1/echo"])
async def test_an_unfinished_body_after_100_continue_waits_like_any_other(base: Base, line: bytes) -> None:
    """With 5,000 of them, Ray Serve's request slots were used up and probes waited."""
    head = closing(LENGTH % 2).replace(b"POST /v1/echo", line)[:-2] + b"expect: 100-continue\r\n\r\n"
    async with listening(base) as echo:
        streams = [await asyncio.open_connection("127.0.0.1", echo.port) for _ in range(3)]
        for reader, writer in streams:
            writer.write(head)
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        assert len(echo.room) == 3, "each may be closed to make room for others"
        assert not any(protocol.tasks for protocol in echo.protocols), "none occupies a slot"
        for reader, writer in streams:
            writer.write(b"{}")
            received = await asyncio.wait_for(reader.read(), 10)
            assert received.startswith(b"HTTP/1.1 405" if b"PUT" in line else b"HTTP/1.1 200")
            writer.close()


@BASES
@pytest.mark.parametrize("line", [b"PUT /healthz", b"POST /readyz", b"PUT /v1/echo"])
async def test_an_unfinished_body_without_a_use_is_not_waited_for(base: Base, line: bytes) -> None:
    """Open probes are not counted, so one that waits for its body would hold an uncounted request slot."""
    async with listening(base) as echo:
        head = (LENGTH % 10**6).replace(b"POST /v1/echo", line)
        if b"echo" in line:
            assert (await exchange(echo, closing(head) + PIECE))[0] == 413
        else:
            status, received = await exchange(echo, head + PIECE)
            assert (status, b"connection: close" in received) == (405, True)


VALUES = {
    b"a-B_9.c": True, b"x" * 64: True, b"x" * 65: False, b"x" * 15_000: False, b"a b": False, b"\xff\xfe": False,
    b"\x9b31m": False, b"a, b": False, b"": False, "ä".encode(): False,
}  # fmt: skip


@BASES
@pytest.mark.parametrize("name", [b"X-Request-ID", b"x-session-id", b"serve_multiplexed_model_id"])
async def test_an_id_that_ray_serve_logs_is_plain_or_removed(base: Base, name: bytes) -> None:
    async with listening(base) as echo:
        for value in VALUES:
            request = closing(HEALTH).replace(HOST, HOST + name + b": " + value + b"\r\n")
            assert (await exchange(echo, request))[0] == 200
        assert [name.decode().lower() in headers for _, headers, _ in echo.requests] == [*VALUES.values()]


@BASES
@pytest.mark.parametrize(
    ("name", "values"),
    [
        (
            b"traceparent",
            {b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01": True, b"00-\xff": False},
        ),
        (b"tracestate", {b"a@b=x/y:1,c=*": True, b"a=\xff\xfe": False, b"a=" + b"x" * 600: False}),
        (b"x-request-timeout-seconds", {b"5": False, b"0": False, b"\xff": False}),
        (b"X-Request-Disconnect-Disabled", {b"?1": False, b"?0": False, b"\xff": False}),
    ],
)
async def test_headers_that_steer_ray_serve_are_readable_or_removed(
    base: Base, name: bytes, values: dict[bytes, bool]
) -> None:
    """Serve's proxy decodes them after it has stored the request, and leaked a body for each invalid one."""
    async with listening(base) as echo:
        for value in values:
            request = closing(HEALTH).replace(HOST, HOST + name + b": " + value + b"\r\n")
            assert (await exchange(echo, request))[0] == 200
        assert [name.decode().lower() in headers for _, headers, _ in echo.requests] == [*values.values()]


def test_every_header_that_ray_serve_reads_is_checked() -> None:
    folder = Path(str(distribution("ray").locate_file("ray/serve/_private")))
    constants = (folder / "constants.py").read_text()
    names = re.findall(r'^SERVE_\w+_HEADER = "(.+)"|"(x-session-id)"', constants, re.MULTILINE)
    assert len(names) > 3
    assert {(a or b).encode() for a, b in names} <= SERVE_FORMATS.keys()


@given(st.binary(max_size=80))
def test_a_plain_id_contains_no_control_or_log_characters(value: bytes) -> None:
    if SERVE_ID.fullmatch(value):
        assert value.decode().isascii()
        assert value.decode().isprintable()
        assert not set(value) & set(b" \"'\\\n=[]{};,")


@BASES
async def test_unfinished_bodies_count_in_bytes_before_the_application_sees_them(base: Base) -> None:
    async with listening(base) as echo:
        streams = [await asyncio.open_connection("127.0.0.1", echo.port) for _ in range(3)]
        for _, writer in streams:
            writer.write(LENGTH % 100_000 + b"a" * 50_000)
        await until(lambda: echo.room._bytes == 150_000)
        for _, writer in streams:
            writer.transport.abort()
        await until(lambda: echo.room._bytes == 0)


async def test_a_proxy_passes_few_reads_on_at_once_and_probes_and_runs_do_not_wait_for_them() -> None:
    late = closing(HEALTH.replace(b"/healthz", b"/v1/late"))
    async with listening(EdgeProtocol) as echo, asyncio.TaskGroup() as tasks:
        for _ in range(2 * READS_AT_ONCE):
            tasks.create_task(exchange(echo, late))
        await until(lambda: len(echo.requests) >= READS_AT_ONCE, "passed on")
        assert (await exchange(echo, closing(HEALTH)))[0] == 200
        assert (await exchange(echo, closing(LENGTH % 2 + b"{}")))[0] == 200
        paths = [path for path, _, _ in echo.requests]
        assert paths == ["/v1/late"] * READS_AT_ONCE + ["/healthz", "/v1/echo"]
        await until(lambda: len(echo.requests) == 2 * READS_AT_ONCE + 2, "their turns ended")
        echo.go_on.set()
