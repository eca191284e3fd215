"""A model's server on the loopback, some of whose first words are late: OpenAI's Chat Completions, streamed."""

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

WORDS = 8


@dataclass
class SlowTail:
    """Such a server.

    Args:
        first_s: until its first word.
        slow_s: likewise, of the slow ones.
        share: of its calls that are slow, drawn at random.
        calls: that it was sent.
        prompts: likewise, by what they ask.
    """

    first_s: float
    slow_s: float
    share: float
    calls: int = 0
    prompts: Counter[str] = field(default_factory=Counter[str])
    _draws: random.Random = field(default_factory=lambda: random.Random(1))

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """One call."""
        is_slow = self._draws.random() < self.share
        await self.note(request)
        await asyncio.sleep(self.slow_s if is_slow else self._draws.uniform(0.8, 1.2) * self.first_s)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for n in range(WORDS):
            await response.write(chunk({"content": f" word{n}"}))
        await response.write(chunk({}, finish_reason="stop"))
        usage = {"prompt_tokens": 5, "completion_tokens": WORDS, "total_tokens": 5 + WORDS}
        await response.write(event({"choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def note(self, request: web.Request) -> None:
        """Count a call, and read it."""
        self.calls += 1
        self.prompts[json.loads(await request.read())["messages"][-1]["content"]] += 1

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[str]:
        """Its base URL, until the end of the block."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self.answer)
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        finally:
            await runner.cleanup()


def chunk(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    """One chunk of a streamed answer."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({"id": "a", "object": "chat.completion.chunk", "model": "slow-tail", "choices": [choice]})


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"
