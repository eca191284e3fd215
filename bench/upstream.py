"""An OpenAI endpoint in the bench's own process: notes when each call came, first spoke and was closed.

`conductor` writes a plan of three inner steps and an answer; `inner`, `answer` and `brief` say words. A call
belongs to a run by the mark `run-...-` in the question, which every worker is shown.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

MARK = re.compile(r"run-\w+-")
INNER = '{"worker": "inner", "subtask": "Say it.", "access": []}\n'
PLAN = INNER * 3 + '{"worker": "answer", "subtask": "Say all.", "access": [0, 1, 2]}\n'


@dataclass(frozen=True, slots=True)
class Script:
    """What a model says, its delay, and its pace."""

    text: str
    delay_s: float
    tokens_per_s: float


SCRIPTS = {
    "conductor": Script(PLAN, 0.05, 60),
    "inner": Script("word " * 30, 0.2, 100),
    "answer": Script("word " * 30, 0.1, 60),
    "brief": Script("The first of a few words.", 0.1, 1000),
}


@dataclass(slots=True)
class UpstreamCall:
    """One call; times by `time.monotonic()`, None where it did not come to that."""

    model: str
    run: str
    spoke_s: float | None = None
    closed_s: float | None = None


class Upstream:
    """The calls, and ways to wait for their states."""

    def __init__(self) -> None:
        self.url = ""
        self._calls: list[UpstreamCall] = []
        self._changed = asyncio.Condition()

    def calls(self, run: str) -> list[UpstreamCall]:
        """The calls of a run, oldest first."""
        return [call for call in self._calls if call.run == run]

    def open_calls(self, run: str) -> list[UpstreamCall]:
        """Those that are not closed."""
        return [call for call in self.calls(run) if call.closed_s is None]

    async def wait_until_called(self, run: str, model: str) -> None:
        """Wait until the run has an open call to `model`."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(call.model == model for call in self.open_calls(run)))

    async def wait_until_idle(self, run: str) -> None:
        """Wait until the run has no open call."""
        async with self._changed:
            await self._changed.wait_for(lambda: not self.open_calls(run))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """`POST /chat/completions`, streamed; cancelled when the connection closes."""
        content = await request.text()
        model, found = json.loads(content)["model"], MARK.search(content)
        call = UpstreamCall(model, found.group() if found else "")
        self._calls.append(call)
        await self._notify()
        try:
            return await self._speak(request, call, SCRIPTS[model])
        finally:
            call.closed_s = time.monotonic()
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _speak(self, request: web.Request, call: UpstreamCall, script: Script) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await asyncio.sleep(script.delay_s)
        await response.prepare(request)
        await response.write(_event(call.model, {"role": "assistant", "content": ""}))
        for word in re.findall(r"\s*\S+|\s+$", script.text):
            call.spoke_s = call.spoke_s or time.monotonic()
            await response.write(_event(call.model, {"content": word}))
            await asyncio.sleep(1 / script.tokens_per_s)
        await response.write(_event(call.model, {}, "stop") + b"data: [DONE]\n\n")
        return response


def _event(model: str, delta: dict[str, Any], finish: str | None = None) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": model}
    chunk = head | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


@asynccontextmanager
async def serve_upstream() -> AsyncGenerator[Upstream]:
    """An upstream on a free port of the loopback, inside the block."""
    upstream = Upstream()
    app = web.Application(client_max_size=2**24)
    app.router.add_post("/v1/chat/completions", upstream.answer)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        upstream.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield upstream
    finally:
        await runner.cleanup()
