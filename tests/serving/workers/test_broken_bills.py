"""Bills of broken calls: the server's count, the bound if the model worked without a count, or nothing if nothing was
sent.
"""

from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerError
from conductor.model.call import Call
from conductor.model.messages import NO_TOOLS
from conductor.model.reply import FinishReason, Reply
from conductor.model.usage import (
    ESTIMATE_BYTES_PER_TOKEN,
    ESTIMATE_SLACK_TOKENS,
    THOUGHT_TOKENS_PER_S,
    Usage,
    estimate,
)
from conductor.run.call_bound import input_bound
from serving.settings.known_models import Accepts
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import CALL, DIALECTS
from tests.serving.workers.subjects import MODEL, PRICE, SECRET
from tests.serving.workers.test_progress import BEGUN, chat, event
from tests.wires.server import Answer, serving, sse

COUNTED = {
    "openai": sse({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 5}}),
    "anthropic": DIALECTS["anthropic"].wire.events(Answer())[0]
    + event("message_delta", delta={"stop_reason": None}, usage={"output_tokens": 5}),
    "gemini": sse({"usageMetadata": {"promptTokenCount": 12, "thoughtsTokenCount": 5}}),
}
"""Counts that a server sends before its first word, for example for hidden reasoning. Responses counts only at the
end.
"""
ONLY_THE_PROMPT = {
    "openai": sse({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 0}}),
    "anthropic": DIALECTS["anthropic"].wire.events(Answer())[0],
    "gemini": sse({"usageMetadata": {"promptTokenCount": 12}}),
}
ODD = {
    "openai": sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "tired"}]}),
    "responses": event("response.incomplete", response={"incomplete_details": {"reason": "tired"}}),
    "anthropic": event("message_delta", delta={"stop_reason": "tired"}),
    "gemini": sse({"candidates": [{"index": 0, "finishReason": "MALFORMED_FUNCTION_CALL"}]}),
}
USAGE_AT_THE_END = {
    "responses": event(
        "response.incomplete",
        response={
            "incomplete_details": {"reason": "tired"},
            "usage": {"input_tokens": 12, "output_tokens": 5},
        },
    ),
    "anthropic": COUNTED["anthropic"]
    + event("message_delta", delta={"stop_reason": "tired"}, usage={"output_tokens": 5}),
    "gemini": sse(
        {
            "candidates": [{"index": 0, "finishReason": "MALFORMED_FUNCTION_CALL"}],
            "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5},
        }
    ),
}
WORD = {
    "openai": chat(content="It"),
    "responses": event("response.output_text.delta", delta="It"),
    "anthropic": event("content_block_delta", index=0, delta={"type": "text_delta", "text": "It"}),
    "gemini": sse(
        {
            "candidates": [{"index": 0, "content": {"role": "model", "parts": [{"text": "It"}]}}],
            "usageMetadata": {"promptTokenCount": 12},
        }
    ),
}
CALLED = {
    "openai": BEGUN["openai"]
    + chat(tool_calls=[{"index": 0, "function": {"arguments": "}"}}])
    + sse({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    + COUNTED["openai"],
    "responses": event(
        "response.output_item.done",
        output_index=0,
        item={"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
    )
    + event("response.completed", response={"usage": {"input_tokens": 12, "output_tokens": 5}}),
    "anthropic": BEGUN["anthropic"]
    + event("content_block_stop", index=1)
    + event("message_delta", delta={"stop_reason": "tool_use"}, usage={"output_tokens": 5}),
    "gemini": sse(
        {
            "candidates": [
                {
                    "index": 0,
                    "content": {"parts": [{"functionCall": {"name": "look"}}]},
                    "finishReason": "STOP",
                }
            ],
            "usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 5},
        }
    ),
}
"""Events with a complete tool call."""
FIVE = Usage(12, 5)


async def broken_answer(
    name: str, *events: bytes, cut: bool = True, call: Call = CALL, late_s: float = 0.0, **account: Any
) -> tuple[WorkerError, Reply | None]:
    """Return the error of a call whose server sends these events and disconnects, and its reply if it had begun."""
    dialect, reply = DIALECTS[name], None
    answer = Answer(
        instead=(b": hello\n\n", *events) if late_s else events,
        pause_after=1 if late_s else len(events),
        late_s=late_s,
        cut_after=len(events) + bool(late_s) if cut else None,
    )
    async with serving(dialect.wire, answer) as server:
        worker = dialect.worker(
            ProviderAccount("w", MODEL, SECRET, server.url + dialect.path, PRICE, **account)
        )
        with pytest.raises(WorkerError) as caught:
            async with worker.open(call) as reply:
                [_ async for _ in reply]
        await worker.aclose()
    return caught.value, reply


@pytest.mark.parametrize("name", COUNTED)
async def test_usage_reported_before_the_first_token_is_billed(name: str):
    error, _ = await broken_answer(name, COUNTED[name])
    counted = replace(FIVE, reasoning_tokens=5) if name == "gemini" else FIVE
    assert (error.usage, error.cost_usd, error.billed_at_bound) == (counted, PRICE.of(FIVE), False)


@pytest.mark.parametrize("name", ONLY_THE_PROMPT)
async def test_a_reported_prompt_count_is_billed(name: str):
    error, _ = await broken_answer(name, ONLY_THE_PROMPT[name])
    assert (error.usage, error.billed_at_bound) == (Usage(12, 0), False)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_call_without_any_answer_costs_nothing(name: str):
    error, _ = await broken_answer(name, b": hello\n\n")
    assert (error.usage, error.cost_usd, error.billed_at_bound) == (None, None, False)


@pytest.mark.parametrize("name", ODD)
async def test_an_unknown_finish_reason_is_billed_at_the_bound(name: str):
    error, _ = await broken_answer(name, ODD[name], cut=False)
    assert error.billed_at_bound
    assert error.usage is None


@pytest.mark.parametrize("name", USAGE_AT_THE_END)
async def test_an_unknown_finish_reason_with_usage_is_billed_as_reported(name: str):
    error, _ = await broken_answer(name, USAGE_AT_THE_END[name], cut=False)
    assert (error.usage, error.cost_usd, error.billed_at_bound) == (FIVE, PRICE.of(FIVE), False)


@pytest.mark.parametrize("name", DIALECTS)
async def test_a_call_of_unoffered_tools_is_billed_as_reported(name: str):
    error, _ = await broken_answer(name, CALLED[name], cut=False, call=replace(CALL, tools=NO_TOOLS))
    assert "the request offers none" in error.message
    assert (error.usage, error.cost_usd, error.billed_at_bound) == (FIVE, PRICE.of(FIVE), False)


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_error_after_a_tool_call_is_billed_at_the_bound(name: str):
    dialect = DIALECTS[name]
    error, _ = await broken_answer(name, BEGUN[name] + dialect.wire.error_event(Answer()), cut=False)
    assert error.billed_at_bound


@pytest.mark.parametrize("name", WORD)
async def test_after_the_first_token_a_prompt_count_alone_is_not_a_bill(name: str):
    start = () if name != "anthropic" else DIALECTS[name].wire.events(Answer())[:3]
    _, reply = await broken_answer(name, *start, WORD[name])
    assert reply is not None
    reply.bound = Usage(100, 1000)
    reply.close_bill()
    assert reply.result.cost_is_bound
    # As counted, or estimated as half of the bytes.
    input_tokens = 12 if name in ("anthropic", "gemini") else 50
    assert reply.result.cost_usd == PRICE.of(Usage(input_tokens, 1 + ESTIMATE_SLACK_TOKENS))
    assert "about twice" in reply.result.notes[-1]


async def test_a_broken_stream_is_billed_for_reported_cache_writes():
    usage = {"input_tokens": 2, "cache_creation_input_tokens": 1000, "output_tokens": 1,
             "cache_creation": {"ephemeral_1h_input_tokens": 1000, "ephemeral_5m_input_tokens": 0}}  # fmt: skip
    message = {
        "id": "m",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": MODEL,
        "usage": usage,
    }
    _, reply = await broken_answer("anthropic", event("message_start", message=message), WORD["anthropic"])
    assert reply is not None
    reply.bound = Usage(1100, 1000)
    reply.close_bill()
    expected_usage = Usage(
        1002, 1 + ESTIMATE_SLACK_TOKENS, cache_write_tokens=1000, cache_write_1h_tokens=1000
    )
    assert reply.result.cost_usd == PRICE.of(expected_usage)


@pytest.mark.parametrize("name", ["anthropic", "responses", "gemini", "openai"])
async def test_a_broken_stream_is_billed_for_more_than_its_reasoning_summary(name: str):
    thoughts = "Let me see. " * 10
    events = {
        "anthropic": event(
            "content_block_delta", index=0, delta={"type": "thinking_delta", "thinking": thoughts}
        ),
        "responses": event("response.reasoning_summary_text.delta", delta=thoughts),
        "gemini": sse(
            {"candidates": [{"index": 0, "content": {"parts": [{"text": thoughts, "thought": True}]}}]}
        ),
        "openai": chat(reasoning_content=thoughts),
    }
    _, reply = await broken_answer(name, events[name], accepts=Accepts(default_effort="high"))
    assert reply is not None
    reply.bound = Usage(100, 5000)
    reply.close_bill()
    times = 1 if name == "openai" else 10
    n_tokens = times * len(thoughts) // 2 + ESTIMATE_SLACK_TOKENS
    assert reply.result.cost_usd == PRICE.of(Usage(50, n_tokens))


@pytest.mark.parametrize("name", DIALECTS)
async def test_an_estimate_includes_streamed_arguments_and_time_of_hidden_reasoning(name: str):
    error, _ = await broken_answer(name, BEGUN[name])
    streamed = error.streamed_bytes
    assert (error.billed_at_bound, error.sent_bytes) == (True, input_bound(CALL))
    assert streamed is not None
    thinks = Accepts(default_effort="high")
    error, _ = await broken_answer(name, BEGUN[name], accepts=thinks, late_s=10.0)
    least = ESTIMATE_BYTES_PER_TOKEN * 10 * THOUGHT_TOKENS_PER_S
    assert error.billed_at_bound
    assert error.streamed_bytes is not None
    assert streamed + least <= error.streamed_bytes < streamed + 2 * least


def test_an_estimate_lies_between_prose_tokens_and_the_bound():
    text = "It is four, since two and two are four. " * 100
    estimated = estimate(Usage(400, 4000), len(text))
    assert estimated.input_tokens == 200
    assert 2 * len(text) / 4.5 < estimated.output_tokens < 3 * len(text) / 4
    assert estimate(Usage(1, 3), 10**6) == Usage(1, 3)


@pytest.mark.parametrize("code", ["overloaded_error", "server_error"])
@pytest.mark.parametrize("name", DIALECTS)
async def test_an_answer_is_complete_whatever_follows_its_end(name: str, code: str):
    dialect, whole = DIALECTS[name], Answer(text="It is four.", error_code=code)
    goodbye = None if name == "gemini" else -1
    events = (*dialect.wire.events(whole)[:goodbye], dialect.wire.error_event(whole))
    if name == "responses":  # its last event ends the stream
        events = (*dialect.wire.events(whole), dialect.wire.error_event(whole))
    async with serving(dialect.wire, Answer(instead=events)) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path, PRICE))
        async with worker.open(CALL) as reply:
            text = "".join([delta.text async for delta in reply])
        await worker.aclose()
    assert (text, reply.finish, reply.result.cost_usd) == (
        "It is four.",
        FinishReason.STOP,
        PRICE.of(Usage(12, 7)),
    )
