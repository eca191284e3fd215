"""Workers for the contract tests, each with a way to control its behaviour. To add one, write an async context
manager that takes a `Behaviour` and yields a `Subject`, and add it to `SUBJECTS`.
"""

import asyncio
import copy
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Literal

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.reply import FinishReason
from conductor.model.usage import Price, Usage
from conductor.model.worker import Worker
from serving.workers.anthropic import AnthropicWorker
from serving.workers.gemini import GeminiWorker
from serving.workers.openai import OpenAIWorker
from serving.workers.openai_responses import OpenAIResponsesWorker
from serving.workers.provider_account import ProviderAccount
from serving.workers.scripted import ScriptedCall, ScriptedReply, ScriptedWorker
from serving.workers.vllm import Chunk, ChunkCall, EngineCall, VllmWorker
from tests.states import until
from tests.wires.anthropic import AnthropicWire
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, WireServer, serving, tokens
from tests.wires.signing import Signing, SigningAnthropic, SigningChat, SigningGemini, SigningResponses

SECRET = "sk-podium-test-0123456789"
MODEL = "the-model"
Failure = Literal["unavailable", "busy", "refused", "overflow"]


@dataclass(frozen=True)
class Behaviour:
    text: str = "It is four."
    reasoning: str = ""
    finish: FinishReason = FinishReason.STOP
    calls: tuple[tuple[str, dict[str, str]], ...] = ()
    """Tool calls, which replace the text."""
    fails: Failure | None = None
    """Failure before the first word."""
    breaks_after_words: int | None = None
    stalls_after_words: int | None = None


USAGE = Usage(input_tokens=12, output_tokens=7, cached_input_tokens=5, reasoning_tokens=2)
PRICE = Price(Decimal(3), Decimal(15), Decimal("0.3"))
"""Usage and price that every subject reports for a whole answer."""
RETRY_AFTER_S = 3.0
"""Delay that every subject requests when it is busy."""


@dataclass(frozen=True)
class Subject:
    """A worker under test, and counters of its calls."""

    worker: Worker
    open_calls: Callable[[], int]
    """Number of calls that the model still works on."""
    n_requests: Callable[[], int]
    """Number of calls that reached the model."""
    price: Price
    """Price in the settings of the worker."""

    async def wait_until_closed(self) -> None:
        await until(lambda: not self.open_calls())


MakeSubject = Callable[[Behaviour], AbstractAsyncContextManager[Subject]]


@asynccontextmanager
async def scripted(behaviour: Behaviour) -> AsyncIterator[Subject]:
    reply = ScriptedReply(
        text=behaviour.text, reasoning=behaviour.reasoning, finish=behaviour.finish, usage=USAGE,
        error=behaviour.fails, retry_after_s=RETRY_AFTER_S, fail_after_tokens=behaviour.breaks_after_words,
        stall_after_tokens=behaviour.stalls_after_words,
        calls=tuple(ScriptedCall(name, json.dumps(arguments)) for name, arguments in behaviour.calls),
    )  # fmt: skip
    worker = ScriptedWorker("w", [reply], model=MODEL, price=PRICE)
    yield Subject(worker, lambda: worker.open_calls, lambda: len(worker.calls), PRICE)


@asynccontextmanager
async def openai(behaviour: Behaviour) -> AsyncIterator[Subject]:
    finish = {
        "stop": "stop",
        "length": "length",
        "content_filter": "content_filter",
        "tool_calls": "tool_calls",
    }[behaviour.finish]
    async with serving(OpenAIWire()) as server:
        _prepare(server, _answer(behaviour, finish, 1, SigningChat()))
        worker = OpenAIWorker(ProviderAccount("w", MODEL, SECRET, f"{server.url}/v1", PRICE))
        yield _subject(worker, server)
        await worker.aclose()


@asynccontextmanager
async def anthropic(behaviour: Behaviour) -> AsyncIterator[Subject]:
    finish = {
        "stop": "end_turn",
        "length": "max_tokens",
        "content_filter": "refusal",
        "tool_calls": "tool_use",
    }[behaviour.finish]
    async with serving(AnthropicWire()) as server:
        _prepare(server, _answer(behaviour, finish, 3, SigningAnthropic()))
        worker = AnthropicWorker(ProviderAccount("w", MODEL, SECRET, server.url, PRICE))
        yield _subject(worker, server)
        await worker.aclose()


@asynccontextmanager
async def gemini(behaviour: Behaviour) -> AsyncIterator[Subject]:
    finish = {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY", "tool_calls": "STOP"}[
        behaviour.finish
    ]
    async with serving(GeminiWire()) as server:
        _prepare(server, _answer(behaviour, finish, 0, SigningGemini()))
        worker = GeminiWorker(ProviderAccount("w", MODEL, SECRET, server.url, PRICE))
        yield _subject(worker, server)
        await worker.aclose()


@asynccontextmanager
async def responses(behaviour: Behaviour) -> AsyncIterator[Subject]:
    async with serving(OpenAIWire()) as server:
        _prepare(server, _answer(behaviour, "", 1, SigningResponses()))
        worker = OpenAIResponsesWorker(ProviderAccount("w", MODEL, SECRET, f"{server.url}/v1", PRICE))
        yield _subject(worker, server)
        await worker.aclose()


class ScriptedEngine:
    """Fake engine behind a `VllmWorker`. The real engine is tested in `tests/live`."""

    def __init__(self, behaviour: Behaviour) -> None:
        self._behaviour = behaviour
        self.n_requests = 0
        self.open_calls = 0
        self.calls: list[EngineCall] = []
        self.loaded: list[str] = []
        self.ready_with: list[str] = []

    async def ready(self, adapters: Sequence[str] = ()) -> bool:
        self.ready_with = list(adapters)
        return True

    async def load(self, adapter: str) -> None:
        self.loaded.append(adapter)

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        self.n_requests += 1
        self.open_calls += 1
        self.calls.append(call)
        try:
            await asyncio.sleep(0)
            if self._behaviour.fails:
                raise copy.copy(ENGINE_ERRORS[self._behaviour.fails])
            counts = (
                USAGE.input_tokens,
                USAGE.cached_input_tokens,
                USAGE.output_tokens,
                USAGE.reasoning_tokens,
            )
            for piece in tokens(self._behaviour.reasoning):
                yield Chunk("", piece, None, *counts)
            for index, piece in enumerate([*tokens(self._behaviour.text), None]):
                if index == self._behaviour.breaks_after_words:
                    raise WorkerUnavailable("the replica died")
                if index == self._behaviour.stalls_after_words:
                    await asyncio.Event().wait()
                if piece is not None:
                    yield Chunk(piece, "", None, *counts)
                await asyncio.sleep(0)
            calls = tuple(ChunkCall(name, json.dumps(arguments)) for name, arguments in self._behaviour.calls)
            finish = "tool_calls" if calls else self._behaviour.finish.value
            yield Chunk("", "", finish, *counts, calls)
        finally:
            self.open_calls -= 1


ENGINE_ERRORS: dict[str, WorkerError] = {
    "unavailable": WorkerUnavailable("the engine failed"),
    "busy": WorkerBusy("the queue is full", retry_after_s=RETRY_AFTER_S),
    "refused": WorkerRefused("no such adapter"),
    "overflow": ContextOverflow("too long"),
}


@asynccontextmanager
async def vllm(behaviour: Behaviour) -> AsyncIterator[Subject]:
    engine = ScriptedEngine(behaviour)
    worker = VllmWorker("w", MODEL, engine, PRICE)
    yield Subject(worker, lambda: engine.open_calls, lambda: engine.n_requests, PRICE)


SUBJECTS: dict[str, MakeSubject] = {
    "scripted": scripted,
    "openai": openai,
    "anthropic": anthropic,
    "gemini": gemini,
    "vllm": vllm,
}


CALLING: dict[str, MakeSubject] = {**SUBJECTS, "responses": responses}
"""Subjects that are tested with tools."""


def _subject(worker: Worker, server: WireServer) -> Subject:
    return Subject(worker, lambda: server.open_requests, lambda: len(server.requests), PRICE)


def _prepare(server: WireServer, answer: Answer) -> None:
    server.answers.extend([answer] * 100)


ANY_REQUEST = Request("", {}, {"model": "", "tools": [], "messages": [], "input": [], "contents": []})


def _answer(behaviour: Behaviour, finish: str, words_start: int, signing: Signing) -> Answer:
    """Return the wire's answer. `words_start` is the number of events before the first word of an answer without
    reasoning.
    """
    answer = Answer(
        text=behaviour.text, reasoning=behaviour.reasoning, finish=finish, model=MODEL,
        input_tokens=USAGE.input_tokens, output_tokens=USAGE.output_tokens, cached_tokens=USAGE.cached_input_tokens,
        reasoning_tokens=USAGE.reasoning_tokens,
    )  # fmt: skip
    if behaviour.calls:
        answer = replace(answer, instead=tuple(signing.events(ANY_REQUEST, 0, behaviour.calls)))
    if behaviour.breaks_after_words is not None:
        answer = replace(answer, cut_after=words_start + behaviour.breaks_after_words)
    if behaviour.stalls_after_words is not None:
        answer = replace(answer, stall_after=words_start + behaviour.stalls_after_words)
    match behaviour.fails:
        case "unavailable":
            return replace(answer, status=500)
        case "busy":
            return replace(answer, status=429, headers={"retry-after": "3"})
        case "refused":
            return replace(answer, status=401, error=f"your key {SECRET} is not one of ours")
        case "overflow":
            return replace(answer, status=413)
        case None:
            return answer


def words(text: str, count: int) -> str:
    return "".join(tokens(text)[:count])
