"""Several answers to one request, each with a run of its own, merger into one response.

`ChoiceMerger` knows how Chat Completions and Completions number their choices, and nothing about runs.
"""

import asyncio
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, cast

import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from conductor.run.run import Run
from serving.api.record_json import dumps
from serving.sessions.deduplication import has_called

Json = dict[str, Any]
DONE = b"data: [DONE]\n\n"


class Siblings:
    """The `n` runs of a request. None starts before all are admitted, so that a rejection wastes no calls."""

    def __init__(self, n: int) -> None:
        self._admitted = asyncio.Barrier(n)
        self.runs: list[Run] = []
        """Runs that have begun."""

    async def wait_until_admitted(self) -> None:
        """Wait until every run has called this."""
        await self._admitted.wait()

    @property
    def have_called(self) -> bool:
        return any(has_called(run.record) for run in self.runs)


class ChoicesResponse:
    """Response that merges `responses` in order. The first failure replaces the answer and ends the others."""

    def __init__(self, responses: Sequence[ASGIApp]) -> None:
        self._responses = responses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        merger, disconnect = ChoiceMerger(len(self._responses), send), asyncio.Event()

        async def wait_for_disconnect() -> Message:
            await disconnect.wait()
            return {"type": "http.disconnect"}

        async def answer(index: int, response: ASGIApp) -> None:
            await response(scope, wait_for_disconnect, merger.sender(index))
            if merger.is_over:
                disconnect.set()

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            disconnect.set()

        watching = asyncio.create_task(watch())
        try:
            async with asyncio.TaskGroup() as tasks:
                for index, response in enumerate(self._responses):
                    tasks.create_task(answer(index, response))
                    await asyncio.sleep(0)  # let other tasks run between two starts
        finally:
            watching.cancel()
        if not disconnect.is_set():
            await merger.end()


class ChoiceMerger:
    """Merges the messages that several responses send into one response."""

    def __init__(self, n: int, send: Send) -> None:
        self._send, self._turn = send, asyncio.Lock()
        self._starts: list[Message | None] = [None] * n
        self._bodies = [b""] * n
        self._usages: list[Json] = []
        self._head: Json = {}
        self._streams = False
        self.is_over = False
        """True if a failure was sent. Nothing may follow it."""

    def sender(self, index: int) -> Send:

        async def take(message: Message) -> None:
            async with self._turn:
                if not self.is_over:
                    await self._take(index, message)

        return take

    async def _take(self, index: int, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._starts[index] = message
            if message["status"] == 200 and _is_stream(message) and not self._streams:
                self._streams = True
                await self._send(message)
            return
        start = self._starts[index]
        assert start is not None, "a response starts before its body"
        if _is_stream(start):
            await self._pass_on(index, message.get("body", b""))
            return
        self._bodies[index] += message.get("body", b"")
        if start["status"] != 200 and not message.get("more_body"):
            await self._fail(start, self._bodies[index])

    async def _fail(self, start: Message, body: bytes) -> None:
        self.is_over = True
        if self._streams:
            await self._write(b"data: " + body + b"\n\n" + DONE, is_last=True)
            return
        await self._send(start)
        await self._write(body, is_last=True)

    async def _pass_on(self, index: int, body: bytes) -> None:
        """Send the events of a choice's stream with its index, without the end marker, which `end` sends."""
        out = b""
        for event in body.split(b"\n\n"):
            if not event.startswith(b"data: "):
                out += event + b"\n\n" if event else b""
            elif event != DONE.strip():
                chunk: Json = orjson.loads(event.removeprefix(b"data: "))
                if "error" in chunk:
                    self.is_over = True
                    await self._write(out + event + b"\n\n" + DONE, is_last=True)
                    return
                out += self._renumber(index, chunk)
        if out:
            await self._write(out)

    def _renumber(self, index: int, chunk: Json) -> bytes:
        self._head = self._head or {name: chunk[name] for name in ("id", "object", "created", "model")}
        if not chunk["choices"] and chunk.get("usage"):
            self._usages.append(chunk["usage"])
            return b""
        choices = [choice | {"index": index} for choice in chunk["choices"]]
        return b"data: " + dumps(chunk | {"id": self._head["id"], "choices": choices}) + b"\n\n"

    async def end(self) -> None:
        """Finish the response once all choices have sent everything."""
        if self.is_over:
            return
        if self._streams:
            whole: Json = self._head | {"choices": [], "usage": add(self._usages)}
            usage = b"data: " + dumps(whole) + b"\n\n" if self._usages else b""
            await self._write(usage + DONE, is_last=True)
            return
        first = self._starts[0]
        assert first is not None, "each response has sent an answer"
        content = dumps(join([orjson.loads(body) for body in self._bodies]))
        headers = [each for each in first["headers"] if each[0] != b"content-length"]
        length = (b"content-length", str(len(content)).encode())
        await self._send({**first, "headers": [*headers, length]})
        await self._write(content, is_last=True)

    async def _write(self, data: bytes, *, is_last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not is_last})


def join(bodies: Sequence[Json]) -> Json:
    """Merge responses: all choices in order, the sum of usage, and each `podium` in `podium.choices`."""
    choices = [choice | {"index": index} for index, body in enumerate(bodies) for choice in body["choices"]]
    runs = [body["podium"] for body in bodies]
    costs = [run.get("cost_usd") for run in runs]
    cost = None if None in costs else float(sum(Decimal(str(each)) for each in costs))
    return bodies[0] | {
        "choices": choices,
        "usage": add([body["usage"] for body in bodies]),
        "podium": {"workflow_id": runs[0]["workflow_id"], "cost_usd": cost, "choices": runs},
    }


def add(usages: Sequence[Json]) -> Json:
    """Return the sums of usage counts by name, in nested objects too."""
    names = dict.fromkeys(name for usage in usages for name in usage)
    return {name: _sum([usage[name] for usage in usages if name in usage]) for name in names}


def _sum(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return add(cast(list[Json], values))
    return any(values) if isinstance(values[0], bool) else sum(values)


def _is_stream(start: Message) -> bool:
    return any(
        value.startswith(b"text/event-stream") for name, value in start["headers"] if name == b"content-type"
    )
