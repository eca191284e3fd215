"""A model's server on the loopback, a part of whose calls end badly, each in another way: OpenAI's Chat Completions,
streamed. It closes each connection after its call, so that whoever holds one on holds it by mistake.
"""

import asyncio
import random
from dataclasses import dataclass, field

from aiohttp import web

from prove.slow_tail import WORDS, SlowTail, chunk, event

FAULTS = ("503", "429", "reset", "silent", "cut", "stall", "malformed")
USAGE = {"prompt_tokens": 5, "completion_tokens": WORDS, "total_tokens": 5 + WORDS}
ENDED = event({"choices": [], "usage": USAGE}) + b"data: [DONE]\n\n"


@dataclass
class FaultyUpstream(SlowTail):
    """Such a server: `share` of its calls, drawn at random, end in one of `FAULTS`, each in turn."""

    faults: int = 0
    _ways: random.Random = field(default_factory=lambda: random.Random(2))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        self.calls += 1
        await request.read()
        fault = ""
        if self._ways.random() < self.share:
            fault = FAULTS[self.faults % len(FAULTS)]
            self.faults += 1
        await asyncio.sleep(self.first_s)
        match fault:
            case "503" | "429":
                refusal = {"error": {"message": "Not now.", "code": fault}}
                return web.json_response(refusal, status=int(fault), headers={"connection": "close"})
            case "reset":
                return _cut(request, web.StreamResponse())
            case "silent":
                await asyncio.sleep(self.slow_s)
                return _cut(request, web.StreamResponse())
            case _:
                return await self._say(request, fault)

    async def _say(self, request: web.Request, fault: str) -> web.StreamResponse:
        """All of the words, or half of them and then what `fault` says."""
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "connection": "close"})
        await response.prepare(request)
        for n in range(WORDS // 2 if fault else WORDS):
            await response.write(chunk({"content": f" word{n}"}))
            await asyncio.sleep(0.01)
        match fault:
            case "cut":
                return _cut(request, response)
            case "stall":
                await asyncio.sleep(self.slow_s)
                return _cut(request, response)
            case "malformed":
                await response.write(b'data: {"choices": [{"delta": {"con\n\n')
            case _:
                pass
        await response.write(chunk({}, finish_reason="stop") + ENDED)
        return response


def _cut(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """End the connection where it stands, without a word."""
    if request.transport is not None:
        request.transport.abort()
    return response
