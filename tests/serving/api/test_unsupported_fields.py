"""OpenAI fields that are not supported: a 400 that names the field, if its value would change the answer."""

from typing import Any

import openai
import pytest
from openai.types.chat import completion_create_params

from serving.api.dialects.chat.schema import ChatRequest
from tests.serving.api.served import ASK, Json, served, team

TOOL: Json = {
    "type": "function",
    "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}},
}
CALL: Json = {"id": "call_1", "type": "function", "function": {"name": "clock", "arguments": "{}"}}
USER: Json = {"role": "user", "content": "Why is the sky blue?"}


def talk(*turns: Json) -> Json:
    return {"messages": [USER, *turns, USER]}


REFUSED: dict[str, tuple[Json, str]] = {
    "a tool that must be called": ({"tool_choice": "required"}, "tool_choice"),
    "a tool by its name": ({"tool_choice": {"type": "function", "function": {"name": "clock"}}}, "tool_choice"),
    "functions": ({"functions": [TOOL["function"]]}, "functions"),
    "a function by its name": ({"function_call": {"name": "clock"}}, "function_call"),
    "top logprobs": ({"top_logprobs": 3}, "top_logprobs"),
    "speech": ({"modalities": ["text", "audio"]}, "modalities"),
    "a voice": ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
    "a web search": ({"web_search_options": {}}, "web_search_options"),
    "a function's result": (talk({"role": "function", "name": "clock", "content": "noon"}), "messages[1].role"),
    "a call of a function": (
        talk({"role": "assistant", "content": None, "function_call": CALL["function"]}), "messages[1].function_call",
    ),
    "words that were spoken": (talk({"role": "assistant", "audio": {"id": "audio_1"}}), "messages[1].audio"),
}  # fmt: skip
NO_EFFECT: dict[str, Json] = {
    "nulls": dict.fromkeys(
        ("tools", "tool_choice", "functions", "function_call", "response_format", "logprobs", "top_logprobs", "logit_bias",
         "frequency_penalty", "presence_penalty", "verbosity", "modalities", "audio", "web_search_options", "moderation", "n",
         "parallel_tool_calls", "prediction", "seed", "stop", "stream_options", "temperature", "top_p", "max_tokens",
         "max_completion_tokens", "reasoning_effort"),
    ),
    "empty values": {
        "tools": [], "functions": [], "logprobs": False, "top_logprobs": 0, "logit_bias": {}, "modalities": [],
        "frequency_penalty": 0, "presence_penalty": 0.0,
    },
    "defaults": {
        "n": 1, "temperature": 1, "top_p": 1, "response_format": {"type": "text"}, "tool_choice": "auto",
        "function_call": "auto", "modalities": ["text"], "verbosity": "medium", "parallel_tool_calls": True,
    },
    "tools that none may call": {"tools": [TOOL], "tool_choice": "none", "parallel_tool_calls": False},
    "functions that none may call": {"functions": [TOOL["function"]], "function_call": "none"},
    "a bias of nothing": {"logit_bias": {"50256": 0}},
    "what is not about the answer": {
        "user": "u1", "safety_identifier": "u1", "store": True, "metadata": {"a": "b"}, "service_tier": "flex",
        "prompt_cache_key": "k", "prompt_cache_retention": "24h", "prediction": {"type": "content", "content": "Blue"},
        "some_new_thing": [1],
    },
    "a turn as the SDK gives it back": talk(
        {"role": "assistant", "content": "Light.", "refusal": None, "annotations": [], "audio": None, "function_call": None,
         "tool_calls": None, "name": "ann"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
async def test_an_unsupported_field_that_affects_the_answer_is_rejected_by_name(stream: bool) -> None:
    async with served(team()) as api:
        for name, (body, param) in REFUSED.items():
            for path in ("/v1/chat/completions", "/v1/plans"):
                answer = await api.post(body | {"stream": stream}, path)
                assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), (
                    name,
                    answer.text,
                )
        assert not api.worker("conductor").calls


async def test_an_unsupported_value_without_effect_is_accepted() -> None:
    async with served(team()) as api:
        for name, body in NO_EFFECT.items():
            answer = await api.post(body)
            assert answer.status_code == 200, (name, answer.text)
            assert answer.json()["choices"][0]["message"]["content"] == "Blue light scatters most."


async def test_an_earlier_refusal_is_sent_as_an_assistant_message() -> None:
    async with served(team()) as api:
        await api.ok(talk({"role": "assistant", "content": None, "refusal": "I cannot."}) | {"model": "a"})
        assert [m.text for m in api.worker("a").calls[0].messages][1] == "I cannot."


async def test_the_sdks_error_names_the_unsupported_field() -> None:
    async with served(team()) as api, api.sdk as sdk:
        functions: Any = [TOOL["function"]]
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.chat.completions.create(model="mini", messages=ASK["messages"], functions=functions)
    assert caught.value.param == "functions"
    assert "is not supported" in caught.value.message


def test_every_field_of_the_sdk_is_supported_rejected_or_without_effect() -> None:
    accepts_by_name = {*completion_create_params.CompletionCreateParamsBase.__annotations__, "stream"}
    assert accepts_by_name <= ChatRequest.model_fields.keys()
