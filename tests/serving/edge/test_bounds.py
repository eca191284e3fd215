"""Incomplete and oversized requests over raw sockets, against the protocol class of Serve's proxy."""

import asyncio
import contextlib
import gc
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from conductor.errors import TooLarge, TooSlow
from serving.api.app import build_api
from serving.api.dialect import Dialects
from serving.api.dialects.table import DIALECTS
from serving.edge.checks import MOST_PICTURES, BodyBound, check_text, read_body
from serving.edge.exchange import WaitingRoom
from serving.edge.middleware import Edge
from serving.edge.policy import HttpPolicy
from serving.edge.protocol import EdgeProtocol, guard_protocol
from serving.pool import build_pool
from serving.sessions.service import Service
from serving.settings.settings import Settings, parse
from tests.serving.api.served import ASK, scripted, served, team
from tests.states import until

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def listening(dialects: Dialects = DIALECTS, **http: Any) -> AsyncGenerator[tuple[int, WaitingRoom]]:
    """Serve the API behind its own edge, as in Serve's proxy. Yield the port and the waiting room."""
    settings = parse(team(http=http))
    policy = HttpPolicy.of(settings)
    room = WaitingRoom(policy.max_waiting, policy.max_unfinished_bytes)
    app = Edge(
        build_api(Service(build_pool(settings, {}, engines={})), dialects), policy, room, dialects.error_body
    )
    config = uvicorn.Config(app, http=guard_protocol(policy, room, dialects.error_body, EdgeProtocol), log_level="critical", lifespan="off", ws="none", timeout_keep_alive=60, port=0)  # fmt: skip
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        yield server.servers[0].sockets[0].getsockname()[1], room
    finally:
        server.servers[0].close()
        for connection in list(server.server_state.connections):
            connection.shutdown()
            connection.transport.abort()


async def send_bytes(port: int, data: bytes) -> Streams:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**22)
    writer.write(data)
    return reader, writer


async def answer(streams: Streams, within_s: float = 10) -> tuple[int, dict[str, Any]]:
    """Return the status and error of the answer, which must arrive in time."""
    reader, writer = streams
    async with asyncio.timeout(within_s):
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        body = json.loads(await reader.readexactly(length))
    writer.close()
    return int(head.split()[1]), body.get("error", body)


async def closed(streams: Streams, within_s: float = 10) -> bytes:
    """Return what the server sends until it closes the connection, which it must do in time."""
    async with asyncio.timeout(within_s):
        try:
            return await streams[0].read()
        except ConnectionResetError:
            return b""
        finally:
            streams[1].close()


def whole(body: Any = ASK) -> bytes:
    content = json.dumps(body).encode()
    return HEAD + b"content-length: %d\r\n\r\n%s" % (len(content), content)


async def test_endless_headers_are_rejected_early() -> None:
    async with listening() as (port, _):
        _, writer = await send_bytes(port, HEAD + b"x-long: ")
        pieces = 0
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(20):
                while pieces < 100:  # 100 MB
                    writer.write(b"a" * 1_000_000)
                    await writer.drain()
                    pieces += 1
        assert pieces < 20
        writer.close()


@pytest.mark.parametrize("size_bytes", [17_000, 60_000])
async def test_headers_that_are_too_long_return_431_even_in_pieces(
    size_bytes: int,
) -> None:
    async with listening() as (port, _):
        assert (
            await answer(
                await send_bytes(
                    port, HEAD + b"x-long: " + b"a" * size_bytes + b"\r\ncontent-length: 0\r\n\r\n"
                )
            )
        )[0] == 431
        reader, writer = await send_bytes(port, HEAD + b"x-long: ")
        for _ in range(size_bytes // 1000):
            writer.write(b"a" * 1000)
            await asyncio.sleep(0)
        code, error = await answer((reader, writer))
        assert (code, error["param"]) == (431, "headers")


async def test_long_permitted_headers_with_a_large_body_are_served() -> None:
    body = json.dumps(ASK | {"messages": [{"role": "user", "content": "x" * 600_000}]}).encode()
    async with listening() as (port, _):
        request = HEAD + b"x-long: " + b"a" * 12_000 + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body
        assert (await answer(await send_bytes(port, request)))[0] == 200


async def test_a_request_that_is_not_http_returns_400() -> None:
    async with listening() as (port, _):
        code, error = await answer(await send_bytes(port, b"\x16\x03\x01 hello\r\n\r\n"))
        assert (code, error["type"]) == (400, "invalid_request_error")


async def test_an_idle_connection_is_closed_and_a_partial_head_returns_408() -> None:
    async with listening(header_s=0.3) as (port, room):
        silent, half = await send_bytes(port, b""), await send_bytes(port, HEAD)
        assert await closed(silent) == b""
        assert (await answer(half))[0] == 408
        blank = await send_bytes(port, b"")
        for _ in range(3):  # blank lines do not count as a request
            blank[1].write(b"\r\n")
            await asyncio.sleep(0.05)
        assert b" 408 " in await closed(blank)
        await until(lambda: not len(room))


async def test_a_keep_alive_connection_may_pause_but_not_within_a_request() -> None:
    async with listening(header_s=0.3) as (port, room):
        reader, writer = await send_bytes(port, whole())
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in head.lower().split(b"\r\n")
            if line.startswith(b"content-length")
        )
        await reader.readexactly(length)
        await until(lambda: len(room) == 1)  # from now on it may be closed if room is short
        await asyncio.sleep(0.5)
        writer.write(whole())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.read(2**16)
        writer.write(HEAD)
        assert b"408" in await closed((reader, writer))


async def test_a_stalled_or_slow_body_returns_408_and_never_becomes_a_run() -> None:
    async with listening(stall_s=0.3, body_s=1.0) as (port, room):
        stopped = await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{")
        reader, writer = await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{")

        async def drip() -> None:
            while True:
                writer.write(b" ")
                await asyncio.sleep(0.1)

        dripping = asyncio.create_task(drip())
        code, error = await answer(stopped)
        assert (code, error["param"], error["code"]) == (408, "body", "request_timeout")
        assert (await answer((reader, writer)))[0] == 408
        dripping.cancel()
        await until(lambda: not len(room))


async def test_a_body_in_pieces_has_one_deadline() -> None:
    """Serve's proxy passes a body on in pieces."""
    policy, room = HttpPolicy.of(parse(team(http={"stall_s": 0.3, "body_s": 1.0}))), WaitingRoom(10, 1000)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(0.2)
        return {"type": "http.request", "body": b" ", "more_body": True}

    with pytest.raises(TooSlow):
        await asyncio.wait_for(read_body({}, receive, {}, policy, room, BodyBound(1000)), 10)
    assert not len(room)


async def test_a_pipelined_body_waits_and_times_out_like_any_other() -> None:
    async with listening(stall_s=0.3) as (port, room):
        streams = await send_bytes(
            port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n" + HEAD + b"content-length: 1000\r\n\r\n"
        )
        assert (await streams[0].readuntil(b"}")).startswith(b"HTTP/1.1 200")
        assert len(room) == 1
        assert b"408" in await closed(streams)
        await until(lambda: not len(room))


async def test_a_client_that_leaves_during_its_body_leaves_no_state() -> None:
    async with listening() as (port, room):
        streams = await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{")
        await until(lambda: len(room) == 1)
        streams[1].transport.abort()
        await until(lambda: not len(room))


async def test_a_connection_reset_after_its_answer_is_freed() -> None:
    def protocols() -> set[EdgeProtocol]:
        gc.collect()
        return {each for each in gc.get_objects() if isinstance(each, EdgeProtocol)} - others

    others = set[EdgeProtocol]()
    others = protocols()
    async with listening() as (port, _):
        reader, writer = await send_bytes(port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        assert len(protocols()) == 1
        writer.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
        )
        writer.close()
        await until(lambda: not protocols(), "the connection is forgotten")


async def test_300_idle_and_300_unfinished_requests_block_no_others() -> None:
    async with listening(max_waiting=100) as (port, room):
        idle = [await send_bytes(port, b"") for _ in range(300)]
        bodies = [await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{") for _ in range(300)]
        began_s = time.thread_time()
        for _ in range(20):
            assert (
                await answer(await send_bytes(port, b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"), 2)
            )[0] == 200
            assert (await answer(await send_bytes(port, whole()), 2))[0] == 200
        assert (time.thread_time() - began_s) / 40 < 0.1
        assert len(room) <= 100
        assert room.evicted >= 500
        assert await closed(idle[0]) == b""
        code, error = await answer(bodies[0])
        assert (code, error["code"]) == (429, "overloaded")
        for _, writer in [*idle, *bodies]:
            writer.transport.abort()


async def test_an_evicted_request_gets_retry_after() -> None:
    async with listening(max_waiting=16) as (port, _):
        first = await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{")
        more = [await send_bytes(port, HEAD + b"content-length: 1000\r\n\r\n{") for _ in range(20)]
        assert b"retry-after: 5" in await first[0].readuntil(b"\r\n\r\n")
        for _, writer in [first, *more]:
            writer.transport.abort()


def words(size_bytes: int) -> bytes:
    return json.dumps(ASK | {"messages": [{"role": "user", "content": "word " * (size_bytes // 5)}]}).encode()


@pytest.mark.real_time
async def test_five_prompts_of_19_mb_are_rejected_without_delaying_others() -> None:
    body, turns_s = words(19_000_000), list[float]()

    async def measure_turns() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0.001)
            turns_s.append(time.thread_time() - began_s)

    async with listening() as (port, _):
        looking = asyncio.create_task(measure_turns())
        request = HEAD + b"content-length: %d\r\n\r\n" % len(body) + body
        answers = await asyncio.gather(*[answer(await send_bytes(port, request), 120) for _ in range(5)])
        looking.cancel()
    assert [(code, error["param"]) for code, error in answers] == [(413, "messages")] * 5
    assert all("limits.max_text_bytes" in error["message"] for _, error in answers)
    assert max(turns_s) < 0.25


async def test_images_may_be_larger_than_text_but_disguised_text_may_not() -> None:
    picture = "data:image/png;base64," + "iVBORw0K" * 100_000
    part = {"type": "image_url", "image_url": {"url": picture}}

    def asking(*parts: Any) -> Any:
        return {"messages": [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, *parts]}]}

    sighted = [scripted(name, sees_images=True) for name in "abc"]
    async with served(team(workers=sighted, limits={"max_text_bytes": 100_000})) as api:
        assert (await api.post(asking(part))).status_code == 200
        disguised = await api.post(asking({"type": "text", "text": picture}))
        assert (disguised.status_code, disguised.json()["error"]["param"]) == (413, "messages")
        beside = await api.post(asking(part, {"type": "text", "text": "x" * 200_000}))
        assert beside.status_code == 413


def test_a_body_with_millions_of_images_is_rejected_early() -> None:
    """Searching for each picture blocked all other requests for 3 s."""
    part = b'{"url": "data:image/png;base64,' + b"iVBORw0K" * 20 + b'"}'
    check_text(part * MOST_PICTURES + b"x" * 1000, len(part) * MOST_PICTURES // 3)
    for many in (b'data:a"' * 2_857_000, part * 100_000):
        with pytest.raises(TooLarge):
            check_text(many, 4_000_000)


@pytest.mark.parametrize("begin", [b'"data": "', b'"url": "data:image/png;base64,'])
def test_text_is_counted_exactly_even_if_it_ends_like_an_image(begin: bytes) -> None:
    before = b"x" * 100
    text = before + begin[: begin.index(b"data")] + b'"'
    for most in range(90, 100 + len(begin)):
        body = before + begin + b"iVBORw0K" * 100 + b'"'
        if most < len(text):
            with pytest.raises(TooLarge):
                check_text(body, most)
        else:
            check_text(body, most)


async def test_too_many_messages_are_rejected() -> None:
    async with served(team()) as api:
        many = await api.post({"messages": [{"role": "user", "content": "x"}] * 3000})
        assert (many.status_code, many.json()["error"]["param"]) == (400, "messages")


PROCESS = """
import asyncio, gc, socket
import uvicorn, uvloop
from serving.api import edge_hook as hook
from serving.edge.middleware import Edge
from serving.edge.protocol import ReaderProtocol

def protocols():
    config = uvicorn.Config(lambda: None, factory=True)  # as Ray Serve creates it
    config.load()
    return config.http_protocol_class, config.ws_protocol_class

async def main():
    (middleware,) = hook.in_proxy()
    protocol, _ = protocols()
    assert protocol.__name__ == "EdgeProtocol" and protocol.policy.max_header_bytes == 2048
    assert middleware.cls is Edge
    assert gc.get_freeze_count(), "the proxy returns memory, as routers do"
    assert hook.in_replica() == []
    protocol, websocket = protocols()
    assert issubclass(protocol, ReaderProtocol) and protocol.policy.max_header_bytes == 2048
    assert websocket is None, "the edge answers a handshake like any request"

    await accept_a_burst()

async def accept_a_burst():
    clients = 2 * hook.ACCEPTS
    with socket.create_server(("127.0.0.1", 0), backlog=clients) as listener:
        burst = [socket.create_connection(listener.getsockname()) for _ in range(clients)]
        config = uvicorn.Config(lambda: None, factory=True, lifespan="off", log_config=None)
        config.load()
        server = uvicorn.Server(config)
        server.lifespan = config.lifespan_class(config)
        await server.startup([listener])
        for _ in range(6):
            await asyncio.sleep(0)
        assert len(server.server_state.connections) == clients, "a probe would wait for each of them"
        for client in burst:
            client.close()
        await server.shutdown([listener])

uvloop.run(main())
"""


def test_uvicorn_uses_the_edge_protocol_in_the_processes_of_serve() -> None:
    policy = HttpPolicy.of(parse(team(http={"max_header_bytes": 2048})))
    environment = os.environ | {"PODIUM_EDGE": policy.model_dump_json()}
    subprocess.run([sys.executable, "-c", PROCESS], env=environment, check=True, timeout=60)


async def test_each_large_body_has_its_own_iteration_of_the_event_loop() -> None:
    n_turns, samples = 0, list[int]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        samples.append(n_turns)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b'"data:a' + b"A" * 300_000 + b'"'}

    async def send(_: Any) -> None:
        pass

    async def count() -> None:
        nonlocal n_turns
        while True:
            n_turns += 1
            await asyncio.sleep(0)

    room = WaitingRoom(4096, 256_000_000)
    edge = Edge(app, HttpPolicy.of(Settings.model_construct()), room, DIALECTS.error_body)
    headers = [(b"content-type", b"application/json"), (b"content-length", b"300008")]
    counting = asyncio.create_task(count())
    await asyncio.gather(
        *(
            edge({"type": "http", "method": "POST", "path": "/v1/x", "headers": list(headers)}, receive, send)  # type: ignore[arg-type]
            for _ in range(5)
        )
    )
    counting.cancel()
    assert len(set(samples)) == 5
