"""`podium exposure`: real sockets of this process, probed without a credential."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import psutil
import pytest
from grpc import aio

from cluster.local import ports
from cluster.local.ports import CALLS, METRICS, NOTHING, UNKNOWN, Port, list_ports

UNAUTHORIZED = b"HTTP/1.1 401 No\r\ncontent-length: 0\r\n\r\n"
NOT_FOUND = b"HTTP/1.1 404 No\r\ncontent-length: 0\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: 0\r\n\r\n"


@asynccontextmanager
async def saying(answer: bytes, host: str = "127.0.0.1") -> AsyncIterator[int]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, host, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


class Ray(grpc.GenericRpcHandler):
    """A method of Ray that may require a token."""

    def __init__(self, method: str, code: grpc.StatusCode | None) -> None:
        self._method, self._code = method, code

    def service(self, handler_call_details: Any) -> Any:
        async def answer(request: bytes, context: Any) -> bytes:
            if self._code is not None:
                await context.abort(self._code, "no")
            return b""

        matches = handler_call_details.method == self._method
        return grpc.unary_unary_rpc_method_handler(answer) if matches else None


@asynccontextmanager
async def rays_server(method: str, code: grpc.StatusCode | None) -> AsyncIterator[int]:
    server = aio.server(handlers=[Ray(method, code)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield port
    await server.stop(0)


async def find_port(port: int) -> Port:
    open_ports = await asyncio.to_thread(list_ports, [psutil.Process()])
    (only,) = [each for each in open_ports if each.port == port]
    return only


@pytest.mark.parametrize(
    ("answer", "asks_for"),
    [
        (UNAUTHORIZED, "a credential (HTTP 401)"),
        (NOT_FOUND, NOTHING),
        (PLAIN, METRICS),
        (b"220 hello\r\n", UNKNOWN),
    ],
)
async def test_an_http_ports_status_shows_which_credential_it_requires(answer: bytes, asks_for: str) -> None:
    async with saying(answer) as port:
        entry = await find_port(port)
    assert (entry.asks_for, entry.address, entry.is_on_loopback) == (asks_for, "127.0.0.1", True)


@pytest.mark.parametrize("method", [CALLS[0], CALLS[-1]])
@pytest.mark.parametrize(
    ("code", "asks_for"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "a token (gRPC)"),
        (None, NOTHING),
        (grpc.StatusCode.INTERNAL, NOTHING),
    ],
)
async def test_a_call_to_a_ray_port_shows_which_credential_it_requires(
    method: str, code: grpc.StatusCode | None, asks_for: str
) -> None:
    async with rays_server(method, code) as port:
        assert (await find_port(port)).asks_for == asks_for


@pytest.mark.parametrize(
    ("address", "asks_for", "guarded"),
    [
        ("127.0.0.1", NOTHING, True), ("::1", UNKNOWN, True), ("::ffff:127.0.0.1", NOTHING, True),
        ("0.0.0.0", NOTHING, False), ("::", UNKNOWN, False), ("10.0.0.1", NOTHING, False),
        ("0.0.0.0", METRICS, True), ("::", "a token (gRPC)", True), ("10.0.0.1", "a credential (HTTP 401)", True),
    ],
)  # fmt: skip
def test_a_port_on_loopback_is_guarded_by_a_credential_or_has_only_numbers(
    address: str, asks_for: str, guarded: bool
) -> None:
    assert Port(1, address, 2, "x", asks_for).is_guarded == guarded


def test_the_command_lists_every_port_and_fails_for_an_open_one(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entries = [
        Port(8000, "127.0.0.1", 7, "ray::Proxy", NOTHING),
        Port(9101, "0.0.0.0", 8, "haproxy", NOTHING),
    ]
    monkeypatch.setattr(ports, "list_ports", lambda processes: entries)
    assert ports.main([]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["port", "address", "reached", "by", "requires", "process"]
    assert [line.split()[:2] for line in lines[1:3]] == [["8000", "127.0.0.1"], ["9101", "0.0.0.0"]]
    assert "port 9101 of haproxy" in lines[3]
    monkeypatch.setattr(ports, "list_ports", lambda processes: entries[:1])
    assert ports.main([]) == 0
