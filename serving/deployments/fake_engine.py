"""A FAKE engine without a model. Its start-up time, queue and token rate are like those of a vLLM replica.

Use it to test autoscaling, routing and draining on machines that cannot run many real engines. It runs only
if the settings ask for it (`stand_in`), and its answers say that they come from a stand-in.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence

from serving.deployments.autoscaling import LOAD
from serving.deployments.loopback import listen_on_loopback
from serving.settings.workers import StandInSettings
from serving.workers.vllm import Chunk, EngineCall

WORDS = [
    "This", "answer", "comes", "from", "a", "stand-in", "for", "an", "engine;", "no", "model", "took", "part",
    "in", "it.",
]  # fmt: skip


class FakeEngine:
    """Fake engine with the interface of `serving.deployments.engine.Engine`, from fields of
    `StandInSettings`.
    """

    def __init__(self, settings: dict[str, float]) -> None:
        listen_on_loopback()
        self._settings = StandInSettings.model_validate(settings)
        time.sleep(self._settings.start_s)
        self._slots = asyncio.Semaphore(self._settings.slots)
        self._unfinished = 0

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        return True

    async def load(self, adapter: str) -> None:
        """Do nothing: the answer is the same with every adapter."""

    async def n_unfinished(self) -> int:
        return self._unfinished

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Report the number of unfinished calls per slot if calls wait, or 0 if none waits."""
        waits = self._unfinished > self._settings.slots
        return {LOAD: self._unfinished / self._settings.slots if waits else 0.0}

    async def generate(self, call: EngineCall) -> AsyncGenerator[Chunk]:
        """Stream up to `max_tokens` words at the token rate of one answer, once a slot is free."""
        n_prompt = sum(len(str(message["content"]).split()) for message in call.messages)
        n_output = min(call.max_tokens or self._settings.answer_tokens, self._settings.answer_tokens)
        self._unfinished += 1
        try:
            async with self._slots:
                await asyncio.sleep(self._settings.first_token_s)
                if len(call.prefix.split()) >= n_output:  # the prefix is already the whole answer
                    yield Chunk("", "", "stop", n_prompt, 0, n_output, 0)
                for n in range(len(call.prefix.split()) + 1, n_output + 1):
                    finish = "stop" if n == n_output else None
                    yield Chunk(WORDS[(n - 1) % len(WORDS)] + " ", "", finish, n_prompt, 0, n, 0)
                    await asyncio.sleep(1 / self._settings.tokens_per_s)
        finally:
            self._unfinished -= 1
