"""A client of the router: sends requests, reads streams, and measures with its own clock."""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import orjson

from loadtest.rig import Json, RigError
from loadtest.sse import BrokenStreamError, StreamResult, read_stream

CHAT = "/v1/chat/completions"
REQUEST_ERRORS = (BrokenStreamError, RigError, aiohttp.ClientError, TimeoutError)
"""What a request may fail with where the failure is counted instead of raised."""


@asynccontextmanager
async def open_session(headers: Mapping[str, str] | None = None) -> AsyncGenerator[aiohttp.ClientSession]:
    """Open a session with any number of connections, inside the block. `headers` go with every request."""
    timeout = aiohttp.ClientTimeout(total=300, sock_connect=60, sock_read=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield session


def chat(model: str, *, question: str = "What is it?", **more: Any) -> Json:
    """The body of a chat request."""
    return {"model": model, "messages": [{"role": "user", "content": question}], **more}


def step(worker: str, *access: int) -> Json:
    """A step of a plan that the caller provides."""
    return {"worker": worker, "subtask": "Say it.", "access": list(access)}


@dataclass(frozen=True, slots=True)
class BenchClient:
    """Sends requests to the application at `url` over connections that are kept open."""

    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Json) -> bytes:
        """The body of the response.

        Raises:
            RigError: the status is not 200.
        """
        async with self.session.post(self.url + path, json=body) as response:
            content = await response.read()
            if response.status != 200:
                raise RigError(f"POST {path}: {response.status} {content[:300]!r}")
            return content

    async def post_json(self, path: str, body: Json) -> Json:
        """The JSON of the response.

        Raises:
            RigError: the status is not 200.
        """
        return cast(Json, orjson.loads(await self.post(path, body)))

    async def get(self, path: str) -> Json:
        """The JSON at `path`."""
        async with self.session.get(self.url + path) as response:
            return cast(Json, await response.json())

    async def answer(self, body: Json) -> tuple[Json, float]:
        """The `podium` object of an answer, and the seconds from request to answer."""
        began_s = time.monotonic()
        answer = await self.post_json(CHAT, body)
        return answer["podium"], time.monotonic() - began_s

    async def record(self, workflow_id: str) -> Json:
        """The record of a run that has answered; it is stored a moment after the answer was sent."""
        for _ in range(50):
            record = await self.get(f"/v1/workflows/{workflow_id}")
            if record.get("status") == "finished":
                return record
            await asyncio.sleep(0.02)
        raise RigError(f"the run {workflow_id} answered and has no record")

    async def stream(self, body: Json) -> tuple[StreamResult, float]:
        """A streamed answer, and when its request was sent (`time.monotonic()`).

        Lines are parsed after the last has come, so that parsing delays none of them.

        Raises:
            RigError: the status is not 200.
            BrokenStreamError: the stream holds an error, or ends before `[DONE]`.
        """
        began_s = time.monotonic()
        async with self.session.post(self.url + CHAT, json=body | {"stream": True}) as response:
            if response.status != 200:
                raise RigError(f"a stream: {response.status} {(await response.read())[:300]!r}")
            lines = [(time.monotonic(), line) async for line in response.content]
        return read_stream(lines, began_s), began_s
