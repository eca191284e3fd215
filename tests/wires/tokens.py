"""Loopback server that issues access tokens, as Google's token endpoint and Azure's managed identity do."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass
class TokenServer:
    answer: dict[str, object]
    url: str = ""
    requests: list[str] = field(default_factory=list[str])

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lines = (line.partition(":") for line in head.split("\r\n"))
        length = next((int(value) for name, _, value in lines if name.lower() == "content-length"), 0)
        self.requests.append(head + (await reader.readexactly(length)).decode())
        content = json.dumps(self.answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\n")
        writer.write(f"content-length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        writer.close()


@asynccontextmanager
async def giving(**answer: object) -> AsyncIterator[TokenServer]:
    """Serve `answer` on a free port."""
    server = TokenServer(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    async with listener:
        yield server
