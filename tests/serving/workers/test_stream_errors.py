"""Errors inside a stream with HTTP status 200. Each is handled like its own status, on every wire."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.errors import (
    ContentFiltered,
    ContextOverflow,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from serving.workers.openai_responses import OpenAIResponsesWorker
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.subjects import MODEL, SECRET
from tests.serving.workers.test_http import CALL, PROVIDERS
from tests.wires.responses import ResponsesWire
from tests.wires.server import Answer, serving, sse

LONG = "Input length 131393 exceeds the maximum allowed input length of 131040 tokens."
ERRORS: dict[str, tuple[Any, type[WorkerError]]] = {
    "a filter's code and a status": ({"error": {"code": "content_filter", "status": 400}}, ContentFiltered),
    "a filter's code alone": ({"error": {"code": "content_filter", "message": "No."}}, ContentFiltered),
    "a filter's type": ({"error": {"type": "content_policy_violation", "message": "No."}}, ContentFiltered),
    "words about the length alone": ({"error": {"message": LONG}}, ContextOverflow),
    "words about the length, with a code": ({"error": {"message": LONG, "code": 400}}, ContextOverflow),
    "a text": ({"error": LONG}, ContextOverflow),
    "a text, with a status beside it": ({"error": "No.", "status": 429}, WorkerBusy),
    "a status in digits": ({"error": {"code": "429", "message": "Slow down."}}, WorkerBusy),
    "a status_code": ({"error": {"status_code": 503, "message": "Down."}}, WorkerUnavailable),
    "an exception's name": ({"error": {"type": "RateLimitError", "message": "Slow down."}}, WorkerBusy),
    "another exception's name": ({"error": {"type": "BadRequestError", "message": "No."}}, WorkerRefused),
    "Google's word": ({"error": {"status": "RESOURCE_EXHAUSTED", "message": "Slow down."}}, WorkerBusy),
    "AWS's word": ({"error": {"type": "ThrottlingException", "message": "Slow down."}}, WorkerBusy),
    "a bad key": ({"error": {"code": "invalid_api_key", "message": "Wrong key."}}, WorkerRefused),
    "an unknown model": ({"error": {"code": 404, "message": "No such model."}}, WorkerRefused),
    "a list of errors": ({"errors": [{"code": 429, "message": "Slow down."}]}, WorkerBusy),
    "an error inside metadata": ({"error": {"message": "x", "metadata": {"status": 429}}}, WorkerBusy),
    "a word that nobody knows": ({"error": {"code": "weird", "message": "Hm."}}, WorkerUnavailable),
    "nothing but words": ({"error": {"message": "Hm."}}, WorkerUnavailable),
    "an overload": ({"error": {"type": "overloaded_error", "message": "Later."}}, WorkerBusy),
}
BARE: dict[str, tuple[Any, type[WorkerError]]] = {
    "vLLM's old form": ({"object": "error", "message": LONG, "code": 400}, ContextOverflow),
    "FastAPI's form": ({"detail": "Slow down.", "status": 429}, WorkerBusy),
    "what OpenRouter quotes of a provider": (
        {
            "error": {
                "message": "Provider returned error",
                "code": 400,
                "metadata": {"raw": f'{{"error": {{"message": "{LONG}"}}}}'},
            }
        },
        ContextOverflow,
    ),
    "a code and a message": ({"code": 429, "message": "Slow down."}, WorkerBusy),
    "OpenRouter's form": (
        {"choices": [{"index": 0, "delta": {"content": ""}, "error": {"code": 429, "message": "Slow."}}]},
        WorkerBusy,
    ),
}
WIRES = {**PROVIDERS, "responses": None}


@asynccontextmanager
async def worker_for(wire: str, *events: bytes) -> AsyncIterator[tuple[Any, Any]]:
    if provider := WIRES[wire]:
        async with provider(Answer(instead=events)) as (worker, server):
            yield worker, server
        return
    async with serving(ResponsesWire(), Answer(instead=events)) as server:
        worker = OpenAIResponsesWorker(ProviderAccount("w", MODEL, SECRET, f"{server.url}/v1"))
        yield worker, server
        await worker.aclose()


async def failing(wire: str, *events: bytes) -> WorkerError:
    async with worker_for(wire, *events) as (worker, server):
        with pytest.raises(WorkerError) as caught:
            async with worker.open(CALL) as reply:
                [_ async for _ in reply]
        assert len(server.requests) == 1
    return caught.value


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("wire", WIRES)
async def test_an_error_in_a_stream_has_the_meaning_of_its_status(wire: str, is_named: bool):
    errors = {
        name: type(await failing(wire, sse(body, "error" if is_named else None)))
        for name, (body, _) in ERRORS.items()
    }
    assert errors == {name: expected for name, (_, expected) in ERRORS.items()}


async def test_openai_compatible_servers_other_error_forms_are_recognised():
    errors = {name: type(await failing("openai", sse(body))) for name, (body, _) in BARE.items()}
    assert errors == {name: expected for name, (_, expected) in BARE.items()}


@pytest.mark.parametrize("wire", PROVIDERS)
async def test_an_error_after_text_has_the_same_meaning(wire: str):
    provider = PROVIDERS[wire]
    start = provider.wire.events(Answer(text="a b c"))[: provider.first_word + 2]
    error = await failing(wire, *start, sse({"error": {"code": "content_filter", "status": 400}}))
    assert type(error) is ContentFiltered


async def test_a_chunk_without_choices_is_not_an_error():
    events = PROVIDERS["openai"].wire.events(Answer(text="a b"))
    odd = (sse({"id": "x", "object": "chat.completion.chunk", "choices": []}), sse({"type": "ping"}))
    async with worker_for("openai", *odd, *events) as (worker, _), worker.open(CALL) as reply:
        assert "".join([delta.text async for delta in reply]) == "a b"
