"""Pools of API models against providers that enforce their published rules."""

import pytest

from tests.serving.api.served import scripted, served
from tests.serving.api_pools import CLIENTS, POOLS, measure, pool
from tests.wires import strict
from tests.wires.openai import OpenAIWire
from tests.wires.server import Request, serving


@pytest.mark.parametrize("name", POOLS)
async def test_no_provider_rejects_a_call_and_every_request_gets_a_plan(name: str):
    count = await measure(name)
    assert count.refused == []
    assert (count.plans, count.answers) == (count.requests, count.requests)
    assert count.requests == 2 * len(CLIENTS)
    assert count.calls > 2 * count.requests, "a conductor and its workers were asked"
    assert count.notes > 0


async def test_omitted_parameters_are_noted_in_the_plan_and_the_step():
    async with pool("OpenAI alone") as (running, _, _), running.sdk as sdk:
        completion = await sdk.chat.completions.create(
            model="podium-mini", messages=[{"role": "user", "content": "hi"}], temperature=0.7, stop="END"
        )
        record = await running.newest()
    assert completion.choices[0].message.content == "First line.\n\nThe answer is ", (
        "the stop sequence holds all the same"
    )
    assert completion.choices[0].finish_reason == "stop"
    assert record["plans"][0]["notes"] == [
        "temperature was omitted, because gpt-6-luna does not accept it while it reasons."
    ]
    assert record["steps"][-1]["notes"] == [
        "temperature was omitted, because gpt-6-luna does not accept it while it reasons.",
        "stop was applied by Podium, because gpt-6-luna does not accept it.",
    ]
    assert record["steps"][-1]["cost_usd"] > 0, "read to its end, so its cost is known"


@pytest.mark.parametrize(
    ("model", "effort"), [("gpt-5", None), ("gpt-5", "high"), ("o4-mini", None), ("gpt-4.1", None)]
)
async def test_a_reasoning_conductor_plans_at_the_default_temperature_without_truncation(
    model: str, effort: str | None
):
    async with serving(OpenAIWire()) as server:
        server.respond = strict.openai()
        lead = {
            "name": "lead",
            "kind": "openai",
            "model": model,
            "base_url": server.url,
            "effort": effort,
            "in_pool": False,
        }
        team = [scripted("a", "A."), scripted("b", "B.")]
        settings = {"conductor": {"worker": "lead"}, "workers": [lead, *team], "models": {"mini": {}}}
        async with served(settings) as running:
            answer = await running.ok()
            record = await running.newest()
            await running.service.pool.aclose()
    assert (answer["podium"]["fallback"], [step["worker"] for step in record["steps"]]) == (None, ["a", "b"])
    assert [plan["source"] for plan in record["plans"]] == ["conductor"]
    assert len(server.requests) == 1


REFUSED = {
    "gpt-5 as a conductor at temperature 0": (strict.openai(), {"model": "gpt-5", "temperature": 0.0}),
    "gpt-5 with max_tokens": (strict.openai(), {"model": "gpt-5", "max_tokens": 9000}),
    "gpt-5 with stop": (strict.openai(), {"model": "gpt-5", "stop": ["END"]}),
    "gpt-5 without any thought": (strict.openai(), {"model": "gpt-5", "reasoning_effort": "none"}),
    "gpt-4o with an effort": (strict.openai(), {"model": "gpt-4o", "reasoning_effort": "low"}),
    "claude above 1": (strict.anthropic, {"model": "claude-haiku-4-5", "max_tokens": 9000, "temperature": 1.5}),
    "claude with both": (strict.anthropic, {"model": "claude-haiku-4-5", "max_tokens": 9000, "temperature": 0.5, "top_p": 0.5}),
    "claude with a blank stop": (strict.anthropic, {"model": "claude-haiku-4-5", "max_tokens": 9000, "stop_sequences": ["\n"]}),
    "a new claude with temperature": (strict.anthropic, {"model": "claude-sonnet-5", "max_tokens": 9000, "temperature": 0.5}),
    "gemini with six stops": (strict.gemini, {"generationConfig": {"stopSequences": list("abcdef")}}),
    "gemini with a long seed": (strict.gemini, {"generationConfig": {"seed": 2**40}}),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_strict_test_providers_reject_invalid_calls(case: str):
    respond, body = REFUSED[case]
    path = "/v1beta/models/gemini-3.8-flash:streamGenerateContent"
    assert respond(Request(path, {}, body)).status == 400
