"""Servers that play the faults of `provider_faults.py`, and addresses that never answer."""

import asyncio
import os
import socket
import tempfile
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from tests.serving.api.provider_faults import FIRST_WORD, TEXT, Case
from tests.wires.certificates import Certificates, make_certificates
from tests.wires.faults import Fault, faulty
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving

WIRE = OpenAIWire()


@dataclass(frozen=True)
class Played:
    url: str
    end_storm: Callable[[], None] = lambda: None
    """Make the server answer normally from now on."""


@dataclass(frozen=True)
class Places:
    """Addresses that never answer, and certificates for TLS."""

    addresses: dict[str, str]
    certificates: Certificates


@asynccontextmanager
async def open_places() -> AsyncGenerator[Places]:
    """Open such addresses. Meanwhile trust the authority of the certificates."""
    before = os.environ.get("SSL_CERT_FILE")
    async with AsyncExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        certificates = make_certificates(folder)
        os.environ["SSL_CERT_FILE"] = str(certificates.authority)
        plain = await opened.enter_async_context(answering(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        mute = await opened.enter_async_context(answering(b""))
        closed = opened.enter_context(refusing())
        addresses = {"nowhere": "http://nowhere.invalid", "closed": f"http://{closed}"}
        addresses |= {"plain": f"https://{plain}", "mute": f"https://{mute}"}
        try:
            yield Places(addresses, certificates)
        finally:
            os.environ.pop("SSL_CERT_FILE")
            if before is not None:
                os.environ["SSL_CERT_FILE"] = before


@contextmanager
def refusing() -> Generator[str]:
    """Yield a host and port that refuse connections. The port stays bound, so that no other server can get it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def answering(content: bytes) -> AsyncGenerator[str]:
    """Yield the host and port of a server that sends `content` after any request, or stays silent if it is empty."""
    clients = set[asyncio.StreamWriter]()

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(writer)
        with suppress(ConnectionError):
            while await reader.read(2**16) and not content:
                pass  # stays silent
            writer.write(content)
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for writer in clients:
            writer.transport.abort()


@asynccontextmanager
async def play(case: Case, places: Places, text: str = TEXT) -> AsyncGenerator[Played]:
    """Play a case and yield its address. Answers come in turn, and complete ones contain `text`."""
    if case.place in places.addresses:
        yield Played(places.addresses[case.place])
    elif isinstance(case.does, Fault):
        words = b"".join(WIRE.events(Answer(text=text))[: FIRST_WORD + 1])
        async with faulty(case.does, words) as upstream:
            upstream.let_read()
            yield Played(upstream.url)
    else:
        *first, last = (replace(each, text=text) if each.text == TEXT else each for each in case.does)
        tls = getattr(places.certificates, case.place) if case.place else None
        async with serving(WIRE, *first, tls=tls) as upstream:
            upstream.respond = lambda request: go_on(request, text) or last

            def end_storm() -> None:
                upstream.respond = lambda _: Answer(text=text)

            yield Played(upstream.url, end_storm)


def go_on(request: Request, text: str) -> Answer | None:
    """Return the rest of `text` if the last turn is its beginning, or None if the whole answer is requested."""
    newest = request.body["messages"][-1]
    return Answer(text=text.removeprefix(newest["content"])) if newest["role"] == "assistant" else None
