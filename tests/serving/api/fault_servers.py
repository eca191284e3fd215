"""The servers that play the faults of `provider_faults.py`, and the addresses where no server can answer."""

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
    """A case that is being played."""

    url: str
    end_storm: Callable[[], None] = lambda: None
    """The server is well from then on."""


@dataclass(frozen=True)
class Places:
    """What is at addresses where no answer can come from, and what servers show by TLS."""

    addresses: dict[str, str]
    certificates: Certificates


@asynccontextmanager
async def open_places() -> AsyncGenerator[Places]:
    """Such addresses; the authority of the certificates is trusted meanwhile."""
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
    """A host and port where nobody listens: bound, so that no server that is started meanwhile is given it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@asynccontextmanager
async def answering(content: bytes) -> AsyncGenerator[str]:
    """The host and port of a server that says `content`, if anything, to whatever it is told."""
    clients = set[asyncio.StreamWriter]()

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        clients.add(writer)
        with suppress(ConnectionError):  # the client has gone
            while await reader.read(2**16) and not content:
                pass  # it goes on saying nothing
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
    """The address where it is played; answers come in turn, and say `text` where they are whole."""
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
    """The rest of the answer, where its beginning is the last turn; None: all of it is wanted."""
    newest = request.body["messages"][-1]
    return Answer(text=text.removeprefix(newest["content"])) if newest["role"] == "assistant" else None
