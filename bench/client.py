"""A client of the router: asks, reads streams, and looks at its own clock."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

import aiohttp
import orjson

from bench.server import BenchError, Json
from loadtest.sse import Felt, felt

CHAT = "/v1/chat/completions"


def chat(model: str, *, question: str = "What is it?", **more: Any) -> Json:
    """A request's body."""
    return {"model": model, "messages": [{"role": "user", "content": question}], **more}


def step(worker: str, *access: int) -> Json:
    """A step of a plan of the caller's own."""
    return {"worker": worker, "subtask": "Say it.", "access": list(access)}


@dataclass(frozen=True, slots=True)
class Client:
    """Asks the application at `url` over connections that are kept open."""

    session: aiohttp.ClientSession
    url: str

    async def post(self, path: str, body: Json) -> bytes:
        """The answer's bytes.

        Raises:
            BenchError: the status is not 200.
        """
        async with self.session.post(self.url + path, json=body) as response:
            content = await response.read()
            if response.status != 200:
                raise BenchError(f"POST {path}: {response.status} {content[:300]!r}")
            return content

    async def answered(self, path: str, body: Json) -> Json:
        """The JSON of the answer.

        Raises:
            BenchError: the status is not 200.
        """
        return cast(Json, orjson.loads(await self.post(path, body)))

    async def get(self, path: str) -> Json:
        """The JSON there."""
        async with self.session.get(self.url + path) as response:
            return cast(Json, await response.json())

    async def answer(self, body: Json) -> tuple[Json, float]:
        """An answer's `podium`, and the seconds from asking to having it."""
        began_s = time.monotonic()
        told = await self.answered(CHAT, body)
        return told["podium"], time.monotonic() - began_s

    async def record(self, workflow_id: str) -> Json:
        """The record of a run that has answered; it is stored a moment after its answer is out."""
        for _ in range(50):
            record = await self.get(f"/v1/workflows/{workflow_id}")
            if record.get("status") == "finished":
                return record
            await asyncio.sleep(0.02)
        raise BenchError(f"the run {workflow_id} answered and has no record of it")

    async def stream(self, body: Json) -> tuple[Felt, float]:
        """A streamed answer, and when (`time.monotonic()`) it was asked for.

        Raises:
            BenchError: the status is not 200.
            BrokenStreamError: it holds an error, or ends before `[DONE]`.
        """
        began_s = time.monotonic()
        async with self.session.post(self.url + CHAT, json=body | {"stream": True}) as response:
            if response.status != 200:
                raise BenchError(f"a stream: {response.status} {(await response.read())[:300]!r}")
            timed = [(time.monotonic(), line) async for line in response.content]
        return _felt(timed, began_s), began_s


def _felt(timed: list[tuple[float, bytes]], began_s: float) -> Felt:
    """`loadtest.sse.felt` of lines that were read before, by the time at which each came."""
    now_s = began_s

    def lines() -> Any:
        nonlocal now_s
        for at_s, line in timed:
            now_s = at_s
            yield line

    return felt(lines(), began_s, lambda: now_s)


async def per_s(ask: Callable[[], Awaitable[object]], clients: int, seconds: float) -> float:
    """How often a second so many clients, asking without a pause, get their answer."""
    began_s = time.monotonic()
    done = 0

    async def keep_asking() -> None:
        nonlocal done
        while time.monotonic() - began_s < seconds:
            await ask()
            done += 1

    await asyncio.gather(*(keep_asking() for _ in range(clients)))
    return done / (time.monotonic() - began_s)


async def times_ms(ask: Callable[[], Awaitable[object]], times: int) -> list[float]:
    """How long each of so many answers took, one at a time."""
    took_ms: list[float] = []
    for _ in range(times):
        began_s = time.monotonic()
        await ask()
        took_ms.append(1000 * (time.monotonic() - began_s))
    return took_ms
