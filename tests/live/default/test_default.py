"""Embedded default, used through the official SDK: vLLM behind Ray Serve."""

import asyncio
import time
from typing import Any, Literal

import httpx2 as httpx
import pytest
from openai import APIStatusError, AsyncOpenAI, OpenAI
from pydantic import BaseModel, Field
from tokenizers import Tokenizer

from tests.conftest import ROOT
from tests.live.default.local import Local

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
ASK = [{"role": "user", "content": "What is the capital of France?"}]


@pytest.fixture
def client(local: Local) -> OpenAI:
    return OpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0)


def test_the_sdk_gets_an_answer_of_real_models(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="podium-mini", messages=ASK)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    details = answer.usage.prompt_tokens_details.model_extra
    assert details["orchestration_input_tokens"] > 0
    rest = (
        details["orchestration_input_tokens"]
        + answer.usage.completion_tokens_details.model_extra["orchestration_output_tokens"]
    )
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens + rest
    assert answer.model_extra["podium"]["steps"]
    assert answer.model_extra["podium"]["cost_usd"] == 0


@pytest.mark.parametrize("with_usage", [False, True])
def test_the_sdk_streams_it_token_by_token(client: OpenAI, with_usage: bool) -> None:
    options = {"stream_options": {"include_usage": True}} if with_usage else {}
    chunks = list(client.chat.completions.create(model="writer", messages=ASK, stream=True, **options))
    assert chunks[0].choices[0].delta.role == "assistant"
    words = [c.choices[0].delta.content for c in chunks if c.choices and c.choices[0].delta.content]
    assert len(words) > 3
    assert [bool(c.usage) for c in chunks] == [False] * (len(chunks) - 1) + [with_usage]


async def test_the_async_sdk_works_both_ways(local: Local) -> None:
    async with AsyncOpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0) as client:
        whole = await client.chat.completions.create(model="solver", messages=ASK, max_tokens=16)
        stream = await client.chat.completions.create(
            model="podium-mini", messages=ASK, stream=True, max_tokens=16
        )
        text = "".join([c.choices[0].delta.content or "" async for c in stream if c.choices])
    assert whole.choices[0].message.content
    assert text


def test_unknown_request_fields_are_ignored(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model="critic",
        messages=ASK,
        max_tokens=8,
        user="u",
        logit_bias={},
        extra_body={"nobody": {"knows": "this"}},
    )
    assert answer.choices[0].message.content


def test_small_models_do_not_write_invalid_plans_because_decoding_is_constrained(client: OpenAI) -> None:
    for question in ("Add 12 and 7.", "Write a poem about the sea.", "{]"):
        messages = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model="podium-mini", messages=messages, max_tokens=8)
        assert answer.model_extra["podium"]["fallback"] is None


class Capital(BaseModel):
    """Form for a small model, which writes prose without its grammar."""

    city: Literal["Paris", "Rome"]
    is_large: bool
    twins: list[Literal["Berlin", "Kyoto"]] = Field(min_length=1, max_length=2)


@pytest.mark.parametrize("model", ["writer", "podium-mini"])
def test_a_local_model_decodes_under_the_requested_schema(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.parse(
        model=model, messages=ASK, response_format=Capital, extra_body={"podium": {"trace": True}}
    )
    assert isinstance(answer.choices[0].message.parsed, Capital)
    attempts = answer.model_extra["podium"]["steps"][-1]["attempts"]
    assert {attempt["error"] for attempt in attempts} <= {"QuestionRejected"}, (
        "a program writes no JSON, a model is right at once"
    )


def test_the_static_prompt_is_served_from_the_prefix_cache(client: OpenAI) -> None:
    cached = 0
    for question in ("What is a fish?", "What is a bird?"):
        messages = [{"role": "user", "content": question}]
        answer = client.chat.completions.create(model="podium-mini", messages=messages, max_tokens=8)
        cached = answer.usage.prompt_tokens_details.model_extra["orchestration_input_cached_tokens"]
    assert cached > 100


def test_a_client_disconnect_aborts_the_request_in_vllm(local: Local) -> None:
    endless = "Write a long essay on the history of Rome."
    body = {
        "model": "conductor",
        "messages": [{"role": "user", "content": endless}],
        "stream": True,
        "temperature": 0,
    }
    assert local.unfinished("vllm-conductor") == 0  # Also creates the handle, which takes a while.
    for _ in range(3):
        with httpx.stream("POST", f"{local.url}/v1/chat/completions", json=body, timeout=60) as response:
            lines = response.iter_lines()  # If it were dropped, the connection would close.
            for line in lines:
                if '"content":"' in line and '"content":""' not in line:
                    break
            assert local.unfinished("vllm-conductor") >= 1
        disconnect_s = time.monotonic()
        while local.unfinished("vllm-conductor"):
            assert time.monotonic() - disconnect_s < 5, "the engine goes on for a client that has left"


@pytest.mark.parametrize("n_words", [6_000, 400_000])
async def test_a_prompt_over_the_models_context_returns_400(local: Local, n_words: int) -> None:
    body = {"model": "writer", "messages": [{"role": "user", "content": "word " * n_words}]}
    async with httpx.AsyncClient() as client:
        response = await client.post(f"{local.url}/v1/chat/completions", json=body, timeout=60)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"


def test_a_local_model_returns_logprobs_in_every_dialect(client: OpenAI) -> None:
    chat: Any = {"model": "writer", "messages": ASK, "max_tokens": 6, "logprobs": True, "top_logprobs": 3}
    greedy: Any = {"temperature": 2, "extra_body": {"top_k": 1, "min_p": 0.1, "repetition_penalty": 1.0}}
    whole = client.chat.completions.create(**chat, **greedy).choices[0]
    assert whole.logprobs is not None
    tokens = whole.logprobs.content or []
    assert "".join(each.token for each in tokens) == whole.message.content
    assert all(each.logprob <= 0 and len(each.top_logprobs) == 3 for each in tokens)
    assert [each.top_logprobs[0].token for each in tokens] == [each.token for each in tokens], "top_k: 1"
    choices = [
        choice for chunk in client.chat.completions.create(**chat, stream=True) for choice in chunk.choices
    ]
    streamed_tokens = [
        each.token for choice in choices if choice.logprobs for each in choice.logprobs.content or []
    ]
    assert "".join(streamed_tokens) == "".join(choice.delta.content or "" for choice in choices)

    response = client.responses.create(
        model="writer",
        input="Hi.",
        max_output_tokens=6,
        include=["message.output_text.logprobs"],
        top_logprobs=2,
    )
    part: Any = response.output[0].content[0]  # type: ignore[union-attr]
    assert "".join(each.token for each in part.logprobs) == response.output_text
    assert {len(each.top_logprobs) for each in part.logprobs} == {2}

    text = client.completions.create(model="writer", prompt="Paris is", max_tokens=4, logprobs=1).choices[0]
    assert text.logprobs is not None
    assert "".join(text.logprobs.tokens or []) == text.text
    assert len(text.logprobs.top_logprobs or []) == len(text.logprobs.token_logprobs or []) == 4


def test_a_local_model_completes_token_prompts_like_text_prompts(client: OpenAI) -> None:
    prompts = ["The capital of France is", "Two and two is"]
    tokenizer = Tokenizer.from_file(str(ROOT / "models/smollm2-135m/tokenizer.json"))
    greedy: Any = {"model": "writer", "max_tokens": 8, "temperature": 0}
    tokens = [tokenizer.encode(prompt).ids for prompt in prompts]
    of_text, of_tokens = (client.completions.create(prompt=prompt, **greedy) for prompt in (prompts, tokens))
    of_one = client.completions.create(prompt=tokens[0], **greedy)
    assert [choice.text for choice in of_tokens.choices] == [choice.text for choice in of_text.choices]
    assert of_one.choices[0].text == of_text.choices[0].text
    assert of_tokens.usage.prompt_tokens == of_text.usage.prompt_tokens == sum(map(len, tokens))
    with pytest.raises(APIStatusError, match="token id that is not in the model"):
        client.completions.create(prompt=[10**6], **greedy)


async def test_concurrent_requests_are_batched_and_all_answered(local: Local) -> None:
    async with AsyncOpenAI(base_url=f"{local.url}/v1", api_key="none", max_retries=0) as client:
        requests = [
            client.chat.completions.create(model="writer", messages=ASK, max_tokens=12) for _ in range(12)
        ]
        answers = await asyncio.gather(*requests)
    assert all(answer.choices[0].message.content for answer in answers)
