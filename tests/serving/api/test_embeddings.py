"""`/v1/embeddings`: one call of the named worker, over a real socket with OpenAI's SDK."""

import json
import math
from typing import Any

import openai
import pytest

from conductor.model.operation import read_vector
from tests.serving.api.served import PRICE, Json, scripted, served, team
from tests.serving.api.test_upstreams import remote
from tests.serving.workers.test_http import PROVIDERS
from tests.wires.server import Answer, serving

VECTORS = scripted("vectors", serves=["embeddings"], price=PRICE)


def pool(**more: object) -> Json:
    return team(workers=[scripted("a"), scripted("b"), VECTORS], **more)


async def test_the_sdk_gets_a_vector_for_each_text_in_order() -> None:
    async with served(pool()) as api, api.sdk as sdk:
        both = await sdk.embeddings.create(model="vectors", input=["one", "two"])
        one = await sdk.embeddings.create(model="vectors", input="one")
    assert [each.index for each in both.data] == [0, 1]
    assert both.data[0].embedding == one.data[0].embedding != both.data[1].embedding
    assert math.isclose(math.hypot(*one.data[0].embedding), 1, rel_tol=1e-6)
    assert (both.usage.prompt_tokens, both.usage.total_tokens) == (2, 2)


async def test_float_and_base64_vectors_are_equal_and_have_the_requested_length() -> None:
    async with served(pool()) as api:
        body: Json = {"model": "vectors", "input": "one", "dimensions": 3}
        answers = [
            (await api.http.post("/v1/embeddings", json=body | {"encoding_format": form})).json()
            for form in ("float", "base64")
        ]
    numbers, text = [answer["data"][0]["embedding"] for answer in answers]
    assert read_vector(text) == numbers
    assert len(numbers) == 3


async def test_embeddings_are_billed_and_stored_like_every_call() -> None:
    async with served(pool()) as api:
        answer = (await api.http.post("/v1/embeddings", json={"model": "vectors", "input": "one two"})).json()
        record = await api.record(answer["podium"]["workflow_id"])
    assert record["status"] == "finished"
    assert answer["podium"]["cost_usd"] == record["cost_usd"] == pytest.approx(2e-6)
    assert [step["worker"] for step in record["steps"]] == ["vectors"]


@pytest.mark.parametrize(
    ("body", "status", "param", "message"),
    [
        ({"model": "mini"}, 400, "model", "Use 'vectors'"),
        ({"model": "a"}, 400, "model", "does not support /v1/embeddings"),
        ({"model": "none"}, 404, "model", "does not exist"),
        ({"input": []}, 400, "input", "at least 1"),
        ({"input": ""}, 400, "input[0]", "at least 1"),
        ({"input": [1, 2]}, 400, "input", "not token ids"),
        ({"encoding_format": "hex"}, 400, "encoding_format", "base64"),
        ({"dimensions": 0}, 400, "dimensions", "at least 1"),
    ],
)
async def test_an_unsupported_embeddings_request_is_an_error_with_its_field(
    body: Json, status: int, param: str, message: str
) -> None:
    async with served(pool()) as api:
        answer = await api.http.post("/v1/embeddings", json={"model": "vectors", "input": "one"} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert message in error["message"]


async def test_a_worker_for_embeddings_is_in_no_plan_and_rejects_chat() -> None:
    async with served(pool()) as api, api.sdk as sdk:
        assert "vectors" not in api.service.settings().pool
        with pytest.raises(openai.BadRequestError, match="does not support /v1/chat/completions"):
            await sdk.chat.completions.create(model="vectors", messages=[{"role": "user", "content": "?"}])


VECTOR = json.dumps(
    {"data": [{"index": 0, "embedding": [0.6, 0.8]}], "model": "m", "usage": {"prompt_tokens": 2}}
)
REFUSALS: list[tuple[int, str]] = [
    (400, "encoding_format 'base64' is not supported"),
    (422, "Input should be 'float'"),
    (400, "bad request"),
    (500, "NotImplementedError: base64"),
    (501, "encoding_format"),
]


@pytest.mark.parametrize(("status", "why"), REFUSALS)
@pytest.mark.parametrize("form", ["base64", "float", None])
async def test_a_server_without_base64_gets_a_float_request(status: int, why: str, form: str | None) -> None:
    def respond(request: Any) -> Answer:
        refuses = request.body.get("encoding_format") == "base64"
        return Answer(status=status, error=why) if refuses else Answer(instead=(VECTOR.encode(),))

    async with serving(PROVIDERS["openai"].wire) as upstream:
        upstream.respond = respond
        worker = remote(PROVIDERS["openai"], upstream.url, serves=["embeddings"])
        async with served(team(workers=[worker, scripted("b")], workflows={})) as api:
            for _ in range(2):
                body = {"model": "a", "input": "one", **({"encoding_format": form} if form else {})}
                answer = await api.http.post("/v1/embeddings", json=body)
                assert answer.status_code == 200, answer.text
        forms = [request.body["encoding_format"] for request in upstream.requests]
    vector = answer.json()["data"][0]["embedding"]
    assert (read_vector(vector) if form == "base64" else vector) == pytest.approx([0.6, 0.8])
    assert forms == (["float"] * 2 if form == "float" else ["base64", "float", "float"])


async def test_a_server_that_rejects_every_encoding_gets_a_request_without_one() -> None:
    def respond(request: Any) -> Answer:
        refuses = "encoding_format" in request.body
        return (
            Answer(status=400, error="unknown field: encoding_format")
            if refuses
            else Answer(instead=(VECTOR.encode(),))
        )

    async with serving(PROVIDERS["openai"].wire) as upstream:
        upstream.respond = respond
        worker = remote(PROVIDERS["openai"], upstream.url, serves=["embeddings"])
        async with served(team(workers=[worker, scripted("b")], workflows={})) as api:
            answer = await api.http.post("/v1/embeddings", json={"model": "a", "input": "one"})
    assert answer.status_code == 200, answer.text


async def test_a_rejection_for_another_reason_stays_an_error() -> None:
    async with serving(PROVIDERS["openai"].wire) as upstream:
        upstream.respond = lambda _: Answer(status=400, error="the text is odd")
        worker = remote(PROVIDERS["openai"], upstream.url, serves=["embeddings"])
        async with served(team(workers=[worker, scripted("b")], workflows={})) as api:
            answers = [
                await api.http.post("/v1/embeddings", json={"model": "a", "input": "one"}) for _ in range(2)
            ]
        forms = [request.body["encoding_format"] for request in upstream.requests]
    assert {answer.status_code for answer in answers} == {502}
    assert forms == ["base64", "float"] * 2, "what was refused for another reason is not remembered"
