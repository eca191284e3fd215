"""Client of the router that sends requests, reads streams, and measures times with its own clock."""

import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import orjson

from loadtest.rig import Json, RigError, poll
from loadtest.sse import BrokenStreamError, StreamResult, read_stream

CHAT = "/v1/chat/completions"
REQUEST_ERRORS = (BrokenStreamError, RigError, aiohttp.ClientError, TimeoutError)
"""Errors of a request. Measurements that count failures catch them."""


@asynccontextmanager
async def open_session(headers: Mapping[str, str] | None = None) -> AsyncGenerator[aiohttp.ClientSession]:
    """Open an HTTP session without a connection limit. It sends `headers` with every request."""
    timeout = aiohttp.ClientTimeout(total=300, sock_connect=60, sock_read=120)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout, headers=headers) as session:
        yield session


def chat(model: str, *, question: str = "What is it?", **more: Any) -> Json:
    return {"model": model, "messages": [{"role": "user", "content": question}], **more}


def step(worker: str, *access: int) -> Json:
    """Return a step of a plan that the client provides. `access` lists the steps that it reads."""
    return {"worker": worker, "subtask": "Say it.", "access": list(access)}


@dataclass(frozen=True, slots=True)
class BenchClient:
    """Client of the application at `url`, over keep-alive connections."""

    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Json) -> bytes:
        """POST `body` and return the response body. Raise RigError unless the status is 200."""
        async with self.session.post(self.url + path, json=body) as response:
            content = await response.read()
            if response.status != 200:
                raise RigError(f"POST {path} returned status {response.status}: {content[:300]!r}")
            return content

    async def post_json(self, path: str, body: Json) -> Json:
        """POST `body` and return the JSON response. Raise RigError unless the status is 200."""
        return cast(Json, orjson.loads(await self.post(path, body)))

    async def get(self, path: str) -> Json:
        async with self.session.get(self.url + path) as response:
            return cast(Json, await response.json())

    async def answer(self, body: Json) -> tuple[Json, float]:
        """Send a request. Return the `podium` object of the answer, and the seconds that the answer took."""
        began_s = time.monotonic()
        answer = await self.post_json(CHAT, body)
        return answer["podium"], time.monotonic() - began_s

    async def record(self, workflow_id: str) -> Json:
        """Return the record of a run that has answered. It is stored shortly after, so retry for 5 s."""
        path = f"/v1/workflows/{workflow_id}"
        record = await poll(
            lambda: self.get(path), lambda each: each.get("status") == "finished", within_s=5, every_s=0.02
        )
        if record.get("status") != "finished":
            raise RigError(f"The run {workflow_id} returned an answer but has no record.")
        return record

    async def wait_until_idle(self, within_s: float) -> int:
        """Wait until no run is active, for at most `within_s`. Return the number of active runs."""

        async def running() -> int:
            return int((await self.get("/readyz"))["running"])

        return await poll(running, lambda active: active == 0, within_s=within_s, every_s=1)

    async def stream(self, body: Json) -> tuple[StreamResult, float]:
        """Send a streaming request. Return the answer and the request's monotonic time. Lines are parsed
        after the end, so that parsing does not delay their times.
        """
        began_s = time.monotonic()
        async with self.session.post(self.url + CHAT, json=body | {"stream": True}) as response:
            if response.status != 200:
                raise RigError(
                    f"A streaming request returned status {response.status}: {(await response.read())[:300]!r}"
                )
            lines = [(time.monotonic(), line) async for line in response.content]
        return read_stream(lines, began_s), began_s
