"""What a client is told of a prompt that an upstream cannot hold, in each dialect: in words that its agent compacts by."""

from typing import Any

import pytest

from tests.serving.api.served import PRICE, Json, scripted, served, step, team
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving, sse

WORDS = "Input length 131393 exceeds the maximum allowed input length of 131040 tokens."
QUESTION: list[Json] = [{"role": "user", "content": "Why?"}]
DIALECTS: dict[str, tuple[str, Json, str]] = {
    "chat": ("/v1/chat/completions", {"messages": QUESTION}, '"context_length_exceeded"'),
    "messages": ("/v1/messages", {"messages": QUESTION, "max_tokens": 9}, "prompt is too long"),
    "responses": ("/v1/responses", {"input": "Why?"}, '"context_length_exceeded"'),
    "completions": ("/v1/completions", {"prompt": "Why?"}, '"context_length_exceeded"'),
}
ANSWERS = {
    "a status": Answer(status=400, error=WORDS),
    "an error in the stream": Answer(instead=(sse({"error": {"message": WORDS, "code": 400}}),)),
}


@pytest.mark.parametrize("how", ANSWERS)
@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_a_prompt_that_is_too_long_is_told_so_that_agents_compact(
    dialect: str, stream: bool, inner: bool, how: str
):
    path, asked, told = DIALECTS[dialect]
    if dialect == "completions" and inner:
        pytest.skip("a completion has one worker")
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: ANSWERS[how]
        own: dict[str, Any] = {
            "name": "a",
            "kind": "openai",
            "model": "m",
            "price": PRICE,
            "serves": ["chat", "text_completion"],
        }
        workers = [own | {"base_url": f"{upstream.url}/v1"}, scripted("b")]
        workflows = {"two": [step("b"), step("a", "Go on.", [0])]}
        async with served(team(workers=workers, workflows=workflows)) as api:
            body = {"model": "two" if inner else "a", "stream": stream, **asked}
            answer = await api.http.post(path, json=body)
    assert told in answer.text
    assert answer.status_code == 400 or stream
    assert len(upstream.requests) == 1
