"""Proxy that cuts one response in the middle, once."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit


@dataclass
class Cutter:
    """Proxy in front of a server of this machine.

    Args:
        upstream: the server's port.
        path: the first response to a request with this in its head is cut.
        cut_after: the text after which it is cut.
    """

    upstream: int
    path: bytes
    cut_after: bytes
    n_cut: int = 0
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set[asyncio.StreamWriter])

    @classmethod
    @asynccontextmanager
    async def between(cls, url: str, path: bytes, cut_after: bytes) -> AsyncGenerator["Cutter"]:
        cutter = cls(urlsplit(url).port or 0, path, cut_after)
        cutter._server = await asyncio.start_server(cutter._serve, "127.0.0.1", 0)
        try:
            yield cutter
        finally:
            await cutter.close()

    @property
    def url(self) -> str:
        assert self._server
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Close all connections and stop listening."""
        if self._server:
            self._server.close()
        for writer in [*self._writers]:
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.upstream)
        self._writers |= {writer, back}
        request = bytearray()
        tasks = [
            asyncio.create_task(self._pass(reader, back, request, None)),
            asyncio.create_task(self._pass(there, writer, bytearray(), request)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for each in (writer, back):
            self._writers.discard(each)
            each.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, past: bytearray, request: bytearray | None
    ) -> None:  # fmt: skip
        with suppress(ConnectionError):
            while data := await reader.read(65_536):
                past += data
                writer.write(data)
                await writer.drain()
                if request is not None and not self.n_cut and self.path in request and self.cut_after in past:
                    self.n_cut += 1
                    return
