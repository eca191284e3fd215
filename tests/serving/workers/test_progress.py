"""Events that keep a call alive on each wire: progress of the model does, mere traffic does not."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.call import Call, CallSite, Sampling
from conductor.model.reply import FinishReason, Reply
from conductor.model.terms import AttemptLimits, Terms
from serving.workers import stall_timer
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import CALL, DIALECTS
from tests.serving.workers.subjects import ANY_REQUEST, MODEL, SECRET
from tests.wires.faults import CHUNKED, Fault, chunk, faulty
from tests.wires.server import Answer, serving, sse

STALL_S = 0.5
SOON_S = 10.0
"""Generous, because a test machine may be busy. Without a limit, each of these would hang."""
LONGEST = 60
"""Output limit in tokens. Slow tool arguments reach it long after the stall timeout."""
COMMENT = b": ping\n\n"


def event(kind: str, **fields: object) -> bytes:
    return sse({"type": kind, **fields}, kind)


def chat(**delta: object) -> bytes:
    return sse({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def parts(*each: object) -> bytes:
    return sse({"candidates": [{"index": 0, "content": {"role": "model", "parts": list(each)}}]})


@dataclass(frozen=True)
class Pieces:
    """Events that a wire may repeat during a tool call."""

    argument: bytes
    """Event with more arguments of the call."""
    idle: tuple[bytes, ...]
    """Events without content."""


PIECES = {
    "openai": Pieces(
        chat(tool_calls=[{"index": 0, "function": {"arguments": "xxxxxxxx"}}]),
        (chat(), chat(content=""), chat(tool_calls=[{"index": 0, "function": {"arguments": ""}}]), sse({"choices": []})),
    ),
    "responses": Pieces(
        event("response.function_call_arguments.delta", output_index=0, delta="xxxxxxxx"),
        (event("response.in_progress", response={}), event("response.function_call_arguments.delta", output_index=0, delta=""),
         event("response.output_item.added", output_index=0, item={"type": "function_call"})),
    ),
    "anthropic": Pieces(
        event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": "xxxxxxxx"}),
        (event("ping"), event("content_block_delta", index=1, delta={"type": "input_json_delta", "partial_json": ""}),
         event("content_block_stop", index=1)),
    ),
    "gemini": Pieces(
        parts({"functionCall": {"name": "look", "args": {"where": "x"}}}),
        (parts(), parts({"text": ""}), sse({"usageMetadata": {"promptTokenCount": 12, "candidatesTokenCount": 1}})),
    ),
}  # fmt: skip
BEGUN = {
    "openai": chat(tool_calls=[{"index": 0, "id": "1", "function": {"name": "look", "arguments": "{"}}]),
    "responses": event("response.output_item.added", output_index=0, item={"type": "function_call"}),
    "anthropic": DIALECTS["anthropic"].wire.events(Answer())[0]
    + event("content_block_start", index=1, content_block={"type": "tool_use", "id": "1", "name": "look", "input": {}}),
    "gemini": PIECES["gemini"].argument,
}  # fmt: skip
ONE_CALL = (("look", {"where": "here"}),)
FINISH = (b'"finish_reason": "', b"response.completed", b"message_delta", b"finishReason")


async def ask(name: str, fault: Fault, call: Call = CALL, stall_s: float = STALL_S) -> Reply:
    dialect = DIALECTS[name]
    async with faulty(fault) as server:
        account: Any = ProviderAccount("w", MODEL, SECRET, server.url + dialect.path, stall_timeout_s=stall_s)
        worker = dialect.worker(account)
        try:
            async with asyncio.timeout(SOON_S), worker.open(call) as reply:
                [_ async for _ in reply]
                return reply
        finally:
            await worker.aclose()


@pytest.mark.parametrize("name", PIECES)
async def test_tool_arguments_that_keep_streaming_are_not_silence(name: str):
    """The call ends at its output limit, and not before."""
    call = replace(CALL, sampling=Sampling(max_output_tokens=LONGEST))
    reply = await ask(name, Fault(tail=chunk(BEGUN[name]), drips=chunk(PIECES[name].argument)), call)
    assert reply.finish is FinishReason.LENGTH


@pytest.mark.parametrize("name", PIECES)
async def test_events_without_progress_do_not_prevent_the_stall_timeout(name: str):
    """Before the first word, and during a tool call."""

    async def outcome(tail: bytes, idle: bytes) -> str:
        with pytest.raises(WorkerUnavailable) as caught:
            await ask(name, Fault(tail=tail, drips=chunk(idle)))
        return caught.value.message

    tried = [(tail, idle) for tail in (b"", chunk(BEGUN[name])) for idle in (COMMENT, *PIECES[name].idle)]
    for text in await asyncio.gather(*(outcome(*each) for each in tried)):
        assert "sent no output within the time limit" in text


@pytest.mark.parametrize("name", PIECES)
async def test_an_answer_gets_a_fixed_time_after_its_finish_reason(
    name: str, monkeypatch: pytest.MonkeyPatch
):
    """For texts and tool calls, whatever follows the finish, even a second finish."""
    monkeypatch.setattr(stall_timer, "GOODBYE_S", 0.2)
    signing = DIALECTS[name].signing
    turn_events = {n: signing.events(ANY_REQUEST, n_turns, ONE_CALL[:n]) for n, n_turns in ((0, 2), (1, 0))}
    tried = [
        (n_calls, events, idle)
        for n_calls, events in turn_events.items()
        for idle in (
            COMMENT,
            *PIECES[name].idle,
            *(each for each in events if any(mark in each for mark in FINISH)),
        )
    ]
    requests = (
        ask(name, Fault(tail=chunk(b"".join(events)), drips=chunk(idle)), stall_s=60)
        for _, events, idle in tried
    )
    replies = await asyncio.gather(*requests)
    assert [len(reply.tool_calls) for reply in replies] == [n_calls for n_calls, *_ in tried]


async def test_nothing_is_awaited_after_the_end_mark(monkeypatch: pytest.MonkeyPatch):
    """Even if the stream has no finish reason."""
    monkeypatch.setattr(stall_timer, "GOODBYE_S", 0.2)
    stream = chat(content="words") + b"data: [DONE]\n\n"
    reply = await ask("openai", Fault(tail=chunk(stream), drips=chunk(COMMENT)), stall_s=60)
    assert (reply.finish, reply.result.output) == (FinishReason.STOP, "words")


async def test_a_growing_token_count_is_not_silence():
    """vLLM sends `continuous_usage_stats` while it parses a call."""
    counts = b"".join(
        chunk(sse({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": n}})) for n in (1, 2)
    )
    with pytest.raises(WorkerUnavailable) as caught:
        await ask(
            "openai",
            Fault(tail=counts),
            replace(CALL, terms=Terms(limits=AttemptLimits(first_token_s=0.01))),
            stall_s=STALL_S,
        )
    assert not caught.value.only_late, "the wait was for its first word no more"


@pytest.mark.parametrize("drip", [b" ", b"[[", b'{"data": [],'])
async def test_slow_embeddings_end_with_the_stall_timeout(drip: bytes):
    head = CHUNKED.replace(b"text/event-stream", b"application/json")
    call = replace(CALL, site=CallSite(operation="embeddings"))
    with pytest.raises(WorkerUnavailable, match="sent no output within the time limit"):
        await ask("openai", Fault(head, drips=chunk(drip)), call)


@pytest.mark.parametrize("name", PIECES)
async def test_a_call_broken_during_a_tool_call_is_billed_at_its_bound(name: str):
    """None of it was shown, but the provider was paid."""
    dialect, start = DIALECTS[name], (BEGUN[name], PIECES[name].argument)
    for events, is_paid in ((start, True), ((COMMENT, COMMENT), False)):
        breaks = Answer(instead=events, pause_after=2, late_s=STALL_S, cut_after=2)
        async with serving(dialect.wire, breaks) as server:
            worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
            with pytest.raises(WorkerError) as caught:
                async with worker.open(CALL) as reply:
                    [_ async for _ in reply]
            await worker.aclose()
        assert caught.value.billed_at_bound is is_paid
