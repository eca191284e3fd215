"""Loopback server that serves one picture or redirects, and counts its requests."""

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
DATA_URL = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"


class Pictures:
    def __init__(self) -> None:
        self.port = 0
        self.n_requests = 0
        self.redirect: str | None = None
        self.media_type = "image/png"

    def url(self, host: str = "127.0.0.1") -> str:
        return f"http://{host}:{self.port}/a.png"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.n_requests += 1
        if self.redirect:
            writer.write(
                f"HTTP/1.1 302 Found\r\nLocation: {self.redirect}\r\nContent-Length: 0\r\n\r\n".encode()
            )
        else:
            head = f"HTTP/1.1 200 OK\r\nContent-Type: {self.media_type}\r\nContent-Length: {len(PIXEL)}\r\nConnection: close\r\n\r\n"
            writer.write(head.encode() + PIXEL)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def pictures() -> AsyncIterator[Pictures]:
    served = Pictures()
    server = await asyncio.start_server(served.serve, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    async with server:
        yield served
