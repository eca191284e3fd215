"""Fake OpenAI endpoint in this process. It streams scripted answers, records every call, and fails on demand.

`echo_upstream.py` is the other fake. It sends prepared bytes from a separate process, to measure throughput.
"""

import asyncio
import json
import random
import re
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from loadtest.rig import HOST

MARK = re.compile(r"run-\w+-")
FAULTS = ("503", "429", "reset", "silent", "cut", "stall", "malformed")
"""Ways in which a call may fail.

- `503`, `429`: an error status.
- `reset`: a reset before the headers.
- `silent`: a reset before the headers, after `stall_s`.
- `cut`: half of the words, then a reset.
- `stall`: half of the words, then a reset after `stall_s`.
- `malformed`: half of the words, then an event that is not JSON.
"""


@dataclass(frozen=True, slots=True)
class Script:
    """Answer to one call.

    Args:
        fault: one of `FAULTS`, or "".
        stall_s: the duration in seconds of the faults `silent` and `stall`.
    """

    words: Sequence[str]
    first_s: float = 0.0
    word_s: float = 0.0
    fault: str = ""
    stall_s: float = 0.0


@dataclass(slots=True)
class UpstreamCall:
    """One call to the endpoint. Times are `time.monotonic()`, or None until they are known.

    Args:
        run: the first text of the form `run-...-` in the body, or "". It marks the run that makes the call.
        spoke_s: when the first word was written.
        closed_s: when the answer ended or its connection closed.
    """

    model: str
    prompt: str
    run: str
    spoke_s: float | None = None
    closed_s: float | None = None


class FakeOpenAI:
    """Fake OpenAI endpoint. With `keep_alive`, a connection can serve several calls."""

    def __init__(self, script: Callable[[UpstreamCall], Script], *, keep_alive: bool = True) -> None:
        self.url = ""
        self.calls: list[UpstreamCall] = []
        self._script, self._headers = script, {} if keep_alive else {"connection": "close"}
        self._changed = asyncio.Condition()

    def calls_of(self, run: str) -> list[UpstreamCall]:
        return [call for call in self.calls if call.run == run]

    def open_calls(self, run: str) -> list[UpstreamCall]:
        return [call for call in self.calls_of(run) if call.closed_s is None]

    async def wait_until_called(self, run: str, model: str) -> None:
        """Wait until the run has an open call to `model`."""
        async with self._changed:
            await self._changed.wait_for(lambda: any(call.model == model for call in self.open_calls(run)))

    async def wait_until_idle(self, run: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: not self.open_calls(run))

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        """Serve on a free loopback port inside the block. Yield the base URL."""
        async with serving("/v1/chat/completions", answer=self._answer) as url:
            self.url = f"{url}/v1"
            yield self.url

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        content = await request.text()
        body, mark = json.loads(content), MARK.search(content)
        prompt = str(body["messages"][-1]["content"])
        call = UpstreamCall(body.get("model", ""), prompt, mark.group() if mark else "")
        self.calls.append(call)
        await self._notify()
        try:
            return await self._play(request, call, self._script(call))
        finally:
            call.closed_s = time.monotonic()
            await asyncio.shield(self._notify())

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _play(self, request: web.Request, call: UpstreamCall, script: Script) -> web.StreamResponse:
        await asyncio.sleep(script.first_s)
        response = web.StreamResponse(headers=self._headers | {"content-type": "text/event-stream"})
        match script.fault:
            case "503" | "429":
                error = {"error": {"message": "Not now.", "code": script.fault}}
                return web.json_response(error, status=int(script.fault), headers=self._headers)
            case "reset":
                return _reset(request, response)
            case "silent":
                await asyncio.sleep(script.stall_s)
                return _reset(request, response)
            case _:
                await response.prepare(request)
                await self._write_words(response, call, script)
        match script.fault:
            case "cut":
                return _reset(request, response)
            case "stall":
                await asyncio.sleep(script.stall_s)
                return _reset(request, response)
            case "malformed":
                await response.write(b'data: {"choices": [{"delta": {"con\n\n')
            case _:
                pass
        await response.write(chunk(call.model, {}, "stop") + _usage(len(script.words)) + b"data: [DONE]\n\n")
        return response

    async def _write_words(self, response: web.StreamResponse, call: UpstreamCall, script: Script) -> None:
        await response.write(chunk(call.model, {"role": "assistant", "content": ""}))
        count = len(script.words) // 2 if script.fault else len(script.words)
        for word in script.words[:count]:
            call.spoke_s = call.spoke_s or time.monotonic()
            await response.write(chunk(call.model, {"content": word}))
            if script.word_s:
                await asyncio.sleep(script.word_s)


@asynccontextmanager
async def serving(
    *paths: str, answer: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> AsyncGenerator[str]:
    """Answer POST requests to `paths` on a free loopback port inside the block. Yield the base URL."""
    app = web.Application(client_max_size=2**26)
    app.add_routes([web.post(path, answer) for path in paths])
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, 0).start()
        yield f"http://{HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def chunk(model: str, delta: dict[str, str], finish: str | None = None) -> bytes:
    """Return one chunk of a streamed answer as a server-sent event."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1_790_000_000, "model": model}
    return event(head | {"choices": [choice]})


def event(value: Any) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _usage(n_words: int) -> bytes:
    usage = {"prompt_tokens": 5, "completion_tokens": n_words, "total_tokens": 5 + n_words}
    return event({"choices": [], "usage": usage})


def _reset(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    if request.transport is not None:
        request.transport.abort()
    return response


SHORT = [f" word{number}" for number in range(8)]


def slow_tail(first_s: float, slow_s: float, share: float) -> Callable[[UpstreamCall], Script]:
    """Return a script of eight words that starts after `slow_s` for a random `share`, else after `first_s`."""
    draws = random.Random(1)

    def script(_: UpstreamCall) -> Script:
        is_slow = draws.random() < share
        return Script(SHORT, slow_s if is_slow else draws.uniform(0.8, 1.2) * first_s)

    return script


class Faulty:
    """Function that returns a script of eight words. A random share of the calls fails, by `FAULTS` in turn."""

    def __init__(self, share: float, first_s: float, stall_s: float) -> None:
        self.faults = 0
        self._share, self._first_s, self._stall_s = share, first_s, stall_s
        self._draws = random.Random(2)

    def __call__(self, call: UpstreamCall) -> Script:
        fault = ""
        if self._draws.random() < self._share:
            fault = FAULTS[self.faults % len(FAULTS)]
            self.faults += 1
        return Script(SHORT, self._first_s, 0.01, fault, self._stall_s)
