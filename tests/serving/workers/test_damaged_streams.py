"""Damaged answers of providers: a short run of `fuzz_streams.py`, and its earlier findings."""

import asyncio
from collections.abc import Sequence

import pytest

from conductor.errors import WorkerError
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import CALL, DIALECTS, fuzz
from tests.serving.workers.subjects import MODEL, SECRET
from tests.wires.server import Answer, serving, sse

START = {"type": "message_start", "message": {"usage": {"input_tokens": 3, "output_tokens": 1}}}
FINDINGS = {
    "a block of no type": ("anthropic", [START, {"type": "content_block_start", "index": 0, "content_block": {}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 2}}]),
    "words that are none": ("anthropic", [START, {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": True}}]),
    "an error of many types": ("anthropic", [{"type": "error", "error": {"type": [None], "message": "Not now."}}]),
    "a call of no tool": ("openai", [{"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "1", "function": {"arguments": "{}"}}]}}]},
        {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}]),
    "an error without words": ("gemini", [{"error": {"code": 500, "message": True, "status": "INTERNAL"}}]),
}  # fmt: skip


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_damaged_answer_ends_with_an_answer_or_a_worker_error(dialect: str) -> None:
    assert fuzz(dialect, examples=100, from_seed=1).total() >= 100


@pytest.mark.parametrize(("name", "events"), FINDINGS.values(), ids=FINDINGS.keys())
async def test_earlier_findings_raise_a_worker_error(name: str, events: Sequence[dict[str, object]]) -> None:
    dialect = DIALECTS[name]
    frames = tuple(sse(event, str(event["type"]) if name == "anthropic" else None) for event in events)
    async with serving(dialect.wire, Answer(instead=frames)) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        with pytest.raises(WorkerError):
            async with asyncio.timeout(5), worker.open(CALL) as reply:
                [_ async for _ in reply]
        await worker.aclose()
