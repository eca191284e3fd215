"""Behaviour specific to the Gemini API."""

import inspect
import re
from typing import Any

import pytest
from google.genai import errors, types

from conductor.errors import (
    ContentFiltered,
    ContextOverflow,
    WorkerBusy,
    WorkerError,
    WorkerRefused,
    WorkerUnavailable,
)
from conductor.model.call import Call, Grammar, Sampling
from conductor.model.messages import File, Image, Message, Text
from conductor.model.usage import Usage
from serving.workers.answer_stream import NO_REASON, REASONS
from serving.workers.gemini import GeminiWorker, fault, thinking_for
from serving.workers.http_errors import GARBLED, ErrorMapper
from serving.workers.provider_account import ProviderAccount
from tests.wires.gemini import GeminiWire
from tests.wires.server import Answer, WireServer, serving

USER = Message.of("user", "What is two and two?")
BARE = Call(messages=(USER,))


async def ask(server: WireServer, call: Call = BARE, model: str = "gemini-2.5-pro", **settings: object):
    worker = GeminiWorker(ProviderAccount("w", model, "AIza-test-key", server.url, **settings))  # type: ignore[arg-type]
    try:
        async with worker.open(call) as reply:
            return [delta async for delta in reply]
    finally:
        await worker.aclose()


def camel(value: Any) -> Any:
    """Convert keys to camel case. Protobuf JSON accepts `mime_type` and `mimeType`, and the SDK sends both."""
    if isinstance(value, list):
        return [camel(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {re.sub(r"_(\w)", lambda m: m[1].upper(), key): camel(item) for key, item in value.items()}


async def test_a_minimal_call_sends_only_required_fields():
    async with serving(GeminiWire()) as server:
        await ask(server)
    body = dict(server.body)
    assert body.pop("generationConfig", {}) == {}
    assert body == {"contents": [{"role": "user", "parts": [{"text": "What is two and two?"}]}]}
    assert server.requests[0].path == "/v1/models/gemini-2.5-pro:streamGenerateContent?alt=sse"
    assert server.requests[0].headers["x-goog-api-key"] == "AIza-test-key"


async def test_every_parameter_of_a_call_is_sent():
    schema = {"type": "object", "properties": {"worker": {"type": "string"}}, "additionalProperties": False}
    call = Call((Message.of("system", "Be short."), USER, Message.of("assistant", "4"), Message.of("user", "Sure?")), Sampling(max_output_tokens=50, temperature=0.0, top_p=0.9, stop=("END",), seed=7, effort="low"), grammar=Grammar("root ::= ...", schema))  # fmt: skip
    async with serving(GeminiWire()) as server:
        await ask(server, call)
    assert server.body["systemInstruction"]["parts"] == [{"text": "Be short."}]
    assert [turn["role"] for turn in server.body["contents"]] == ["user", "model", "user"]
    assert camel(server.body["generationConfig"]) == {
        "maxOutputTokens": 50, "temperature": 0.0, "topP": 0.9, "stopSequences": ["END"], "seed": 7,
        "responseMimeType": "application/json", "responseJsonSchema": schema,
        "thinkingConfig": {"thinkingBudget": 1024, "includeThoughts": True},
    }  # fmt: skip


async def test_adjacent_messages_are_merged_and_a_lone_system_prompt_is_a_question():
    async with serving(GeminiWire()) as server:
        await ask(server, Call(messages=(USER, Message.of("user", ""), Message.of("user", "Please."))))
        assert server.body["contents"] == [
            {"role": "user", "parts": [{"text": "What is two and two?"}, {"text": "Please."}]}
        ]
        await ask(server, Call(messages=(Message.of("system", "Say four."),)))
        assert server.body["contents"] == [{"role": "user", "parts": [{"text": "Say four."}]}]
        assert "systemInstruction" not in server.body


async def test_images_and_pdfs_are_sent_as_bytes_or_as_a_url():
    parts = (
        Text("What?"),
        Image("data:image/png;base64,iVBORw0KGgo/+A=="),
        Image("https://pictures.example/cat.webp?s=1"),
        File("a.pdf", "data:application/pdf;base64,JVBERi0xLjc="),
    )
    async with serving(GeminiWire()) as server:
        await ask(server, Call(messages=(Message("user", parts),)), fetches_pictures=True)
    words, png, cat, pdf = camel(server.body["contents"][0]["parts"])
    assert words == {"text": "What?"}
    assert pdf == {"inlineData": {"mimeType": "application/pdf", "data": "JVBERi0xLjc="}}
    assert png["inlineData"]["mimeType"] == "image/png"
    assert png["inlineData"]["data"].replace("-", "+").replace("_", "/") == "iVBORw0KGgo/+A=="
    assert cat == {"fileData": {"fileUri": "https://pictures.example/cat.webp?s=1", "mimeType": "image/webp"}}


async def test_extra_body_overrides_the_request():
    extra = {"generationConfig": {"topK": 5}, "safetySettings": []}
    async with serving(GeminiWire()) as server:
        await ask(server, Call((USER,), Sampling(temperature=0.2)), extra_body=extra)
    assert server.body["generationConfig"] == {"temperature": 0.2, "topK": 5}
    assert server.body["safetySettings"] == []


@pytest.mark.parametrize(
    ("model", "effort", "budget", "level"),
    [
        ("gemini-2.5-pro", "none", 128, None),
        ("gemini-2.5-pro", "max", 32_768, None),
        ("gemini-2.5-flash", "minimal", 0, None),
        ("models/gemini-2.5-flash", "medium", 8192, None),
        ("gemini-3-pro-preview", "none", None, "LOW"),
        ("gemini-3.8-flash", "none", None, "MINIMAL"),
        ("gemini-3.8-flash", "max", None, "HIGH"),
    ],
)
def test_effort_is_mapped_to_the_models_parameters(
    model: str, effort: str, budget: int | None, level: str | None
):
    config = thinking_for(model, effort)
    assert config is not None
    assert (config.thinking_budget, config.thinking_level) == (budget, level and types.ThinkingLevel(level))
    assert config.include_thoughts is (None if effort in ("none", "minimal") else True)


def test_without_reasoning_support_or_effort_no_thinking_is_configured():
    assert thinking_for("gemini-2.0-flash", "high") is None
    assert thinking_for("gemma-3-27b-it", "high") is None
    assert thinking_for("gemini-2.5-pro", None) is None


async def test_output_tokens_include_reasoning():
    answer = Answer(input_tokens=100, cached_tokens=60, output_tokens=9, reasoning_tokens=4)
    async with serving(GeminiWire(), answer) as server:
        deltas = await ask(server)
    assert deltas[-1].usage == Usage(100, 9, cached_input_tokens=60, reasoning_tokens=4)


async def test_a_blocked_prompt_is_filtered_and_its_tokens_are_counted():
    async with serving(GeminiWire(), Answer(extra={"block": "SAFETY"}, input_tokens=5)) as server:
        with pytest.raises(ContentFiltered) as caught:
            await ask(server)
    assert caught.value.usage == Usage(5)


async def test_a_retry_delay_in_the_body_is_read():
    async with serving(GeminiWire(), Answer(status=429, extra={"retry_delay": "34.5s"})) as server:
        with pytest.raises(WorkerBusy) as caught:
            await ask(server)
    assert caught.value.retry_after_s == 34.5


async def test_a_bad_key_with_status_400_is_recognised():
    bad_key = [
        Answer(status=400, error="API key not valid. Please pass a valid API key."),
        Answer(status=400, error="Renew it.", extra={"reason": "API_KEY_INVALID"}),
        Answer(status=403, error="Not from here.", extra={"reason": "API_KEY_IP_ADDRESS_BLOCKED"}),
    ]
    async with serving(GeminiWire(), *bad_key) as server:
        for _ in bad_key:
            with pytest.raises(WorkerRefused) as caught:
                await ask(server)
            assert "GEMINI_API_KEY" in caught.value.detail
            assert caught.value.every_call


async def test_a_400_that_quotes_a_client_field_is_not_a_bad_key():
    message = "* GenerateContentRequest.tools[0].function_declarations[0].parameters.properties[api_key_invalid].type: must be specified"
    async with serving(GeminiWire(), Answer(status=400, error=message)) as server:
        with pytest.raises(WorkerRefused) as caught:
            await ask(server)
    assert "GEMINI_API_KEY" not in caught.value.detail
    assert not caught.value.every_call


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (429, WorkerBusy),
        (503, WorkerUnavailable),
        (400, WorkerRefused),
        (500, WorkerUnavailable),
        (413, ContextOverflow),
    ],
)
async def test_an_error_inside_the_stream_is_mapped_by_its_code(code: int, error: type[WorkerError]):
    async with serving(GeminiWire(), Answer(error_after=1, extra={"code": code})) as server:
        with pytest.raises(WorkerError) as caught:
            await ask(server)
    assert type(caught.value) is error


async def test_a_broken_stream_is_not_resumed_by_the_sdk():
    wire = GeminiWire()
    token = (
        b'data: {"candidates": [{"content": {"parts": [{"text": "a"}]}, "continuationToken": "dG9r"}]}\n\n'
    )
    async with serving(wire, Answer(instead=(token,), end_after=1)) as server:
        with pytest.raises(WorkerUnavailable):
            await ask(server)
    assert len(server.requests) == 1


UNFINISHED = {
    "OTHER", "MALFORMED_FUNCTION_CALL", "IMAGE_OTHER", "NO_IMAGE", "UNEXPECTED_TOOL_CALL",
    "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE", "MALFORMED_RESPONSE",
}  # fmt: skip
"""Finish reasons that do not finish an answer."""


def test_every_finish_reason_of_the_sdk_is_known():
    unknown = {each.value for each in types.FinishReason if each.value.lower() not in REASONS}
    assert unknown - {each for each in unknown if each.lower() in NO_REASON} == UNFINISHED


EXPECTED: dict[str, type[WorkerError]] = {
    "APIError": WorkerUnavailable,
    "ClientError": WorkerRefused,
    "ServerError": WorkerUnavailable,
    "ContinuationInterruptedError": WorkerUnavailable,
}
STATUS = {"APIError": 500, "ClientError": 400, "ServerError": 500}


def test_every_exception_of_the_sdk_is_mapped():
    """Subclasses of `ValueError` are mapped as garbled chunks. A new exception fails this test until it is mapped."""
    faults = ErrorMapper("w", "gemini-9", "Gemini", "GEMINI_API_KEY", "http://here", "AIza-test-key")
    mapped = {}
    for name, kind in inspect.getmembers(errors, inspect.isclass):
        if not issubclass(kind, Exception) or issubclass(kind, (Warning, *GARBLED)):
            continue
        exc = kind("no") if name not in STATUS else kind(STATUS[name], {"error": {"message": "no"}}, None)
        mapped[name] = type(fault(faults, exc))
    assert mapped == EXPECTED
