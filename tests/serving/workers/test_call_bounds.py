"""Limits on parts of an answer that are passed on only when complete: tool calls, and native turns."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.model.call import Call, Sampling
from conductor.model.operation import WireOptions
from conductor.model.reply import FinishReason, Reply
from serving.workers import output_limit
from serving.workers.output_limit import MOST_CALLS
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import CALL, DIALECTS, Dialect
from tests.serving.workers.subjects import ANY_REQUEST, MODEL, SECRET
from tests.wires.server import Answer, WireServer, serving, sse

SOON_S = 20.0
FEW_TOKENS = 100


@pytest.fixture(params=DIALECTS.values(), ids=DIALECTS.keys())
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@asynccontextmanager
async def asking(dialect: Dialect, *answers: Answer) -> AsyncIterator[tuple[Any, WireServer]]:
    async with serving(dialect.wire, *answers) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        yield worker, server
        await worker.aclose()


async def ask(worker: Any, call: Call = CALL) -> Reply:
    async with asyncio.timeout(SOON_S), worker.open(call) as reply:
        [_ async for _ in reply]
        return reply


async def test_tool_arguments_count_as_output_while_they_stream(dialect: Dialect):
    events = dialect.signing.events(ANY_REQUEST, 0, (("look", {"where": "x" * 10_000}),))
    call = replace(CALL, sampling=Sampling(max_output_tokens=FEW_TOKENS))
    async with asking(dialect, Answer(instead=tuple(events), stall_after=len(events) - 1)) as (
        worker,
        server,
    ):
        reply = await ask(worker, call)
        await asyncio.wait_for(server.requests[-1].hung_up.wait(), SOON_S)
    assert (reply.finish, reply.tool_calls, reply.billed_at_bound) == (FinishReason.LENGTH, [], True)
    assert f"max_output_tokens ({FEW_TOKENS})" in reply.notes[0]


async def test_tool_arguments_within_the_limit_are_complete(dialect: Dialect):
    events = dialect.signing.events(ANY_REQUEST, 0, (("look", {"where": "x" * 300}),))
    call = replace(CALL, sampling=Sampling(max_output_tokens=FEW_TOKENS))
    async with asking(dialect, Answer(instead=tuple(events))) as (worker, _):
        reply = await ask(worker, call)
    assert reply.finish is FinishReason.TOOL_CALLS
    assert json.loads(reply.tool_calls[0].arguments) == {"where": "x" * 300}


async def test_the_number_of_tool_calls_per_answer_is_limited(dialect: Dialect):
    def call_events(n_calls: int) -> tuple[bytes, ...]:
        return tuple(dialect.signing.events(ANY_REQUEST, 0, [("look", {"n": "1"})] * n_calls))

    most, more = call_events(MOST_CALLS), call_events(MOST_CALLS + 1)
    async with asking(dialect, Answer(instead=most), Answer(instead=more, stall_after=len(more) - 1)) as (
        worker,
        server,
    ):
        assert len((await ask(worker)).tool_calls) == MOST_CALLS
        reply = await ask(worker)
        await asyncio.wait_for(server.requests[-1].hung_up.wait(), SOON_S)
    assert (reply.finish, reply.tool_calls) == (FinishReason.LENGTH, [])
    assert f"more than {MOST_CALLS} tool calls" in reply.notes[0]


NATIVE_PARTS = {
    "openai": sse({"choices": [{"delta": {"reasoning_details": [{"data": "x" * 1000}]}}]}),
    "responses": b"".join(
        sse({"type": "response.output_item.done", "output_index": n, "item": {"type": "reasoning", "encrypted_content": "x" * 1000}})
        for n in range(100)
    ),
    "anthropic": sse({"type": "content_block_start", "index": 0, "content_block": {"type": "redacted_thinking", "data": "x" * 1000}}, "content_block_start"),
    "gemini": sse({"candidates": [{"content": {"role": "model", "parts": [{"text": "", "thoughtSignature": "eHh4" * 300}]}}]}),
}  # fmt: skip


@pytest.mark.parametrize("name", DIALECTS)
async def test_native_content_of_a_turn_is_limited(name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(output_limit, "MOST_KEPT_BYTES", 50_000)
    dialect = DIALECTS[name]
    first = dialect.wire.events(Answer())[0]
    answer = Answer(instead=(first, *[NATIVE_PARTS[name]] * 100), stall_after=101)
    async with asking(dialect, answer) as (worker, _):
        reply = await ask(worker)
    assert reply.finish is FinishReason.LENGTH
    assert "in addition to text" in reply.notes[0]


async def test_tokens_with_logprobs_count_towards_the_limit():
    """Each word may come with any number of log probabilities."""
    content = [{"token": "x", "logprob": -1.0, "bytes": None, "top_logprobs": []}] * 50
    stream = sse({"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": content}}]})
    options = WireOptions(top_logprobs=1)
    call = replace(CALL, sampling=Sampling(max_output_tokens=FEW_TOKENS, options=options))
    async with asking(DIALECTS["openai"], Answer(instead=(stream,) * 10, stall_after=9)) as (worker, _):
        reply = await ask(worker, call)
    assert (reply.finish, len(reply.logprobs)) == (FinishReason.LENGTH, 200)
