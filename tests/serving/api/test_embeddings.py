"""`/v1/embeddings`: one call of the worker that the model's name says, over a real socket with OpenAI's SDK."""

import math

import openai
import pytest

from conductor.model.vectors import decode
from tests.serving.api.served import PRICE, Json, scripted, served, team

VECTORS = scripted("vectors", serves=["embeddings"], price=PRICE)


def pool(**more: object) -> Json:
    return team(workers=[scripted("a"), scripted("b"), VECTORS], **more)


async def test_the_sdk_gets_a_vector_for_each_text_in_their_order() -> None:
    async with served(pool()) as api, api.sdk as sdk:
        both = await sdk.embeddings.create(model="vectors", input=["one", "two"])
        one = await sdk.embeddings.create(model="vectors", input="one")
    assert [each.index for each in both.data] == [0, 1]
    assert both.data[0].embedding == one.data[0].embedding != both.data[1].embedding
    assert math.isclose(math.hypot(*one.data[0].embedding), 1, rel_tol=1e-6)
    assert (both.usage.prompt_tokens, both.usage.total_tokens) == (2, 2)


async def test_numbers_and_base64_are_the_same_vector_as_long_as_it_was_asked_for() -> None:
    async with served(pool()) as api:
        asked: Json = {"model": "vectors", "input": "one", "dimensions": 3}
        answers = [
            (await api.http.post("/v1/embeddings", json=asked | {"encoding_format": form})).json()
            for form in ("float", "base64")
        ]
    numbers, text = [answer["data"][0]["embedding"] for answer in answers]
    assert decode(text) == numbers
    assert len(numbers) == 3


async def test_they_are_paid_and_kept_as_every_call() -> None:
    async with served(pool()) as api:
        answer = (await api.http.post("/v1/embeddings", json={"model": "vectors", "input": "one two"})).json()
        record = await api.record(answer["podium"]["workflow_id"])
    assert record["status"] == "finished"
    assert answer["podium"]["cost_usd"] == record["cost_usd"] == pytest.approx(2e-6)
    assert [step["worker"] for step in record["steps"]] == ["vectors"]


@pytest.mark.parametrize(
    ("body", "status", "param", "said"),
    [
        ({"model": "mini"}, 400, "model", "Ask 'vectors'"),
        ({"model": "a"}, 400, "model", "does not serve /v1/embeddings"),
        ({"model": "none"}, 404, "model", "No model"),
        ({"input": []}, 400, "input", "at least 1"),
        ({"input": ""}, 400, "input[0]", "at least 1"),
        ({"input": [1, 2]}, 400, "input", "no numbers of tokens"),
        ({"encoding_format": "hex"}, 400, "encoding_format", "base64"),
        ({"dimensions": 0}, 400, "dimensions", "greater"),
    ],
)
async def test_what_cannot_be_served_is_told_by_its_field(
    body: Json, status: int, param: str, said: str
) -> None:
    async with served(pool()) as api:
        answer = await api.http.post("/v1/embeddings", json={"model": "vectors", "input": "one"} | body)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (status, param)
    assert said in error["message"]


async def test_a_worker_of_vectors_is_in_no_plan_and_holds_no_chat() -> None:
    async with served(pool()) as api, api.sdk as sdk:
        assert "vectors" not in api.service.pool.settings.pool
        with pytest.raises(openai.BadRequestError, match="does not serve /v1/chat/completions"):
            await sdk.chat.completions.create(model="vectors", messages=[{"role": "user", "content": "?"}])
