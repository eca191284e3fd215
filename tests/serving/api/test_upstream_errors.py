"""Errors for a prompt that is too long for an upstream, in each dialect, worded so that agents compact their
conversation.
"""

from typing import Any

import pytest

from tests.serving.api.served import PRICE, Json, plan, scripted, served, step, team
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
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("dialect", "inner"),
    [(each, inner) for each in DIALECTS for inner in (False, True) if not (inner and each == "completions")],
)
async def test_a_prompt_too_long_has_the_error_that_makes_agents_compact(
    dialect: str, stream: bool, inner: bool, how: str
):
    path, fields, error = DIALECTS[dialect]
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
            body = {"model": "two" if inner else "a", "stream": stream, **fields}
            answer = await api.http.post(path, json=body)
    assert error in answer.text
    assert answer.status_code == 400 or stream
    assert len(upstream.requests) == 1


@pytest.mark.parametrize("model", ["a", "mini", "two"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("status", [400, 401, 404, 429, 503])
@pytest.mark.parametrize("dialect", ["chat", "messages", "responses"])
async def test_a_prompt_too_long_is_reported_even_if_the_fallback_failed(
    dialect: str, status: int, stream: bool, model: str
):
    path, body, error = DIALECTS[dialect]
    own: Json = {"kind": "openai", "model": "m", "price": PRICE, "retry": {"attempts": 1}}
    async with serving(OpenAIWire()) as small, serving(OpenAIWire()) as other:
        small.respond = lambda _: ANSWERS["a status"]
        other.respond = lambda _: Answer(status=status, error="no")
        workers = [
            own | {"name": "a", "base_url": f"{small.url}/v1", "fallbacks": ["c"]},
            own | {"name": "c", "base_url": f"{other.url}/v1", "in_pool": False},
            scripted("b"),
        ]
        workflows = {"two": [step("b"), step("a", "Go on.", [0])]}
        async with served(team(plan(step("a")), workers=workers, workflows=workflows)) as api:
            answer = await api.http.post(path, json={"model": model, "stream": stream, **body})
            record = await api.newest()
    assert error in answer.text
    assert answer.status_code == 400 or stream
    failed = record["error"]["podium"]["attempts"]
    assert [(each["worker"], each["error"] == "ContextOverflow") for each in failed] == [
        ("a", True),
        ("c", False),
    ]


async def test_a_prompt_too_long_for_the_conductor_is_reported_after_all_others_failed():
    workers = [scripted("a", {"error": "refused"})]
    settings = team({"error": "overflow"}, workers=workers, workflows={})
    async with served(settings) as api:
        answer = await api.post()
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "context_length_exceeded")
