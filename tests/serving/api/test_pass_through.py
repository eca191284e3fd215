"""Text completions, embeddings and options through an OpenAI-compatible worker, whose server is another Podium."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.model.call import Call, CallSite
from conductor.model.messages import Message
from conductor.model.operation import Likely, TokenLogprob, read_vector, vector_text
from serving.workers.chat_chunks import decode as read_chunk
from serving.workers.openai_embeddings import embedding_delta
from serving.workers.openai_stream import logprobs_of
from serving.workers.usage import UsageCheck
from tests.serving.api.served import ASK, PRICE, Json, Served, scripted, served, team

BEHIND = team(workers=[
    scripted("text", "then {question}"), scripted("b"), scripted("vectors", serves=["embeddings"]),
], workflows={})  # fmt: skip


def upstream(name: str, model: str, url: str, *serves: str, **more: Any) -> Json:
    return {
        "name": name, "kind": "openai", "model": model, "base_url": f"{url}/v1", "serves": list(serves), "price": PRICE, **more,
    }  # fmt: skip


@asynccontextmanager
async def chain() -> AsyncGenerator[tuple[Served, Served]]:
    """Serve one Podium in front of another. Yield the front one first."""
    async with served(BEHIND) as behind:
        workers = [
            upstream("text", "text", behind.url, "chat", "text_completion"),
            upstream("vectors", "vectors", behind.url, "embeddings", retry={"attempts": 1}),
            upstream("gone", "none", behind.url, "embeddings", fallbacks=[], retry={"attempts": 1}),
            scripted("b"),
        ]
        async with served(team(workers=workers, workflows={})) as front:
            yield front, behind


async def test_embeddings_pass_through_unchanged_and_are_billed() -> None:
    async with chain() as (front, behind), front.sdk as near, behind.sdk as far:
        ask: Any = {"model": "vectors", "input": ["one", "two"], "dimensions": 4}
        through, direct = await near.embeddings.create(**ask), await far.embeddings.create(**ask)
    assert [each.embedding for each in through.data] == [each.embedding for each in direct.data]
    assert len(through.data[0].embedding) == 4
    podium: Any = through.model_extra["podium"]  # type: ignore[index]
    assert podium["cost_usd"] == pytest.approx(2e-6)


async def test_text_completions_pass_through_with_logprobs() -> None:
    async with chain() as (front, behind), front.sdk as sdk:
        answer = await sdk.completions.create(model="text", prompt="Once", max_tokens=5, logprobs=1)
        [call] = behind.worker("text").calls
    assert [(message.role, message.text) for message in call.messages] == [("user", "Once")]
    assert call.site.operation == "text_completion"
    assert answer.choices[0].text == "then Once"
    assert answer.choices[0].logprobs is not None
    assert answer.choices[0].logprobs.tokens == ["then", " Once"]


@pytest.mark.parametrize("stream", [False, True])
async def test_token_prompts_pass_through_unchanged(stream: bool) -> None:
    async with chain() as (front, behind), front.sdk as sdk:
        texts = ["", "", ""]
        for prompt in ([1, 22, 333], [[4, 5], [6]]):
            answer: Any = await sdk.completions.create(model="text", prompt=prompt, stream=stream)
            for chunk in [each async for each in answer] if stream else [answer]:
                for choice in chunk.choices:
                    texts[choice.index + (prompt[0] != 1)] += choice.text
        calls = behind.worker("text").calls
    assert texts == ["then [1,22,333]", "then [4,5]", "then [6]"]
    assert all(call.sampling.options.token_prompt for call in calls)


async def test_token_prompts_are_rejected_if_the_worker_does_not_accept_them() -> None:
    def worker(name: str, **more: Any) -> Json:
        return upstream(
            name, "m", "http://127.0.0.1:9", "chat", "text_completion", retry={"attempts": 1}, **more
        )

    workers = [worker("new", api="responses"), worker("away", fallbacks=["b"]), scripted("b")]
    async with served(team(workers=workers, workflows={})) as api:
        ask = [
            await api.http.post("/v1/completions", json={"model": model, "prompt": prompt})
            for model, prompt in (("new", [1]), ("away", [1]), ("away", "one"))
        ]
    error = ask[0].json()["error"]
    assert (ask[0].status_code, error["param"]) == (400, "prompt")
    assert "worker 'new' does not accept token ids" in error["message"]
    assert [answer.status_code for answer in ask[1:]] == [502, 200]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_options_pass_through(stream: bool) -> None:
    async with chain() as (front, behind):
        body: Json = {
            "model": "text", "frequency_penalty": 1, "presence_penalty": -1, "logit_bias": {"5": 9}, "logprobs": True, "top_logprobs": 2,
            "top_k": 7, "min_p": 0.25, "repetition_penalty": 1.5,
        }  # fmt: skip
        answer = await front.post(body | {"stream": stream})
        [call] = behind.worker("text").calls
    options = call.sampling.options
    assert (options.frequency_penalty, options.presence_penalty, options.top_logprobs) == (1, -1, 2)
    assert [(each.token, each.bias) for each in options.logit_bias or ()] == [("5", 9)]
    own = call.sampling
    assert (own.top_k, own.min_p, own.repetition_penalty) == (7, 0.25, 1.5)
    assert '"logprob":0.0' in answer.text


async def test_a_model_missing_upstream_is_an_error_with_that_reason() -> None:
    async with chain() as (front, _):
        answer = await front.http.post("/v1/embeddings", json={"model": "gone", "input": "x"})
    assert answer.status_code == 502
    assert answer.json()["error"]["message"].startswith("gone ")


async def test_a_worker_for_embeddings_is_never_called_for_chat() -> None:
    async with chain() as (front, _):
        for model in ("vectors", "gone"):
            assert (
                await front.http.post("/v1/chat/completions", json=ASK | {"model": model})
            ).status_code == 400


CALL = Call((Message.of("user", "a"), Message.of("user", "b")), site=CallSite(operation="embeddings"))


def row(index: int, vector: object) -> Json:
    return {"object": "embedding", "index": index, "embedding": vector}


def test_vectors_are_ordered_by_index_and_may_be_base64() -> None:
    answer = {"data": [row(1, [2.0, 3.0]), row(0, vector_text([0.5, 1.0]))], "usage": {"prompt_tokens": 2}}
    delta = embedding_delta(answer, CALL, UsageCheck(CALL, None))
    assert [read_vector(line) for line in delta.text.split("\n")] == [[0.5, 1.0], [2.0, 3.0]]


@pytest.mark.parametrize(
    "answer",
    [None, [], {}, {"data": {}}, {"data": [row(0, [1.0])]}, {"data": [row(0, [1.0]), row(1, [1.0, 2.0])]},
     {"data": [row(0, []), row(1, [])]}, {"data": [row(0, "!"), row(1, "!")]}, {"data": [row(0, [True]), row(1, [1.0])]},
     {"data": [row(0, [1e300]), row(1, [1.0])]}, {"data": [7, 8]}, {"data": [row(0, "AAA="), row(1, "AAA=")]}],
)  # fmt: skip
def test_an_answer_without_a_vector_for_each_text_is_an_error(answer: object) -> None:
    with pytest.raises(ValueError, match=r"vector|base64"):
        embedding_delta(answer, CALL, UsageCheck(CALL, None))


@pytest.mark.parametrize(
    ("raw", "read"),
    [
        (b'{"content":[{"token":"a","logprob":-1,"bytes":[97],"top_logprobs":[{"token":"b","logprob":-2}]}]}',
         (TokenLogprob("a", -1.0, (Likely("b", -2.0),)),)),
        (b'{"tokens":["a"],"token_logprobs":[-1],"top_logprobs":[{"b":-2}],"text_offset":[0]}',
         (TokenLogprob("a", -1.0, (Likely("b", -2.0),)),)),
        (b'{"tokens":["a"],"token_logprobs":[null],"top_logprobs":null}', (TokenLogprob("a", -9999.0),)),
        (b'{"content":[7,{"token":7},{"token":"a","logprob":"x"}]}', (TokenLogprob("a", -9999.0),)),
        (b'"odd"', ()),
        (b"null", ()),
    ],
)  # fmt: skip
def test_logprobs_of_both_formats_are_parsed_and_oddities_ignored(raw: bytes, read: object) -> None:
    chunk = read_chunk(b'{"choices":[{"index":0,"text":"a","logprobs":' + raw + b"}]}")
    assert logprobs_of(chunk) == read
