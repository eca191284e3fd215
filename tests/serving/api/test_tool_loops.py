"""A client's tools through a run and back, with the official SDKs, in Chat Completions and in Messages."""

import json
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.serving.api.calling_team import calling_team
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Json, Served, served, team
from tests.serving.api.test_messages import PATH, PICTURE, QUESTION, sdk
from tests.serving.api.tool_caller import tool_caller
from tests.states import until

CHAT = "/v1/chat/completions"
NAMES = ("weather", "clock")
CHAT_TOOLS: Any = [{"type": "function", "function": {"name": name}} for name in NAMES]
TOOLS: Any = [{"name": name, "input_schema": {"type": "object"}} for name in NAMES]
ROME = {"city": "Rome"}


@pytest.mark.parametrize("model", ["mini", "a"])
async def test_openais_sdk_runs_tools_and_gets_the_answer(model: str) -> None:
    async with served(calling_team()) as api, api.sdk as client:
        messages: Any = list(ASK["messages"])
        response = await client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS)
        message = response.choices[0].message
        assert (message.content, response.choices[0].finish_reason) == ("I look.", "tool_calls")
        calls = [call for call in message.tool_calls or () if call.type == "function"]
        assert [(call.function.name, json.loads(call.function.arguments)) for call in calls] == [
            (name, ROME) for name in NAMES
        ]
        results = [{"role": "tool", "tool_call_id": call.id, "content": call.function.name} for call in calls]
        messages += [message, *reversed(results)]
        answer = await client.chat.completions.create(model=model, messages=messages, tools=CHAT_TOOLS)
    assert answer.choices[0].message.content == "They gave: weather, clock."
    assert answer.choices[0].finish_reason == "stop"


async def test_openais_sdk_parses_tool_calls_from_a_stream() -> None:
    async with (
        served(calling_team()) as api,
        api.sdk as client,
        client.chat.completions.stream(model="mini", messages=ASK["messages"], tools=CHAT_TOOLS) as stream,
    ):
        final = await stream.get_final_completion()
    message = final.choices[0].message
    assert (message.content, final.choices[0].finish_reason) == ("I look.", "tool_calls")
    assert [call.function.name for call in message.tool_calls or ()] == list(NAMES)


def results_of(message: anthropic.types.Message, **more: Any) -> list[Any]:
    return [
        {"type": "tool_result", "tool_use_id": block.id, "content": block.name, **more}
        for block in message.content
        if block.type == "tool_use"
    ]


async def run_tools(api: Served, *, stream: bool) -> anthropic.types.Message:
    """Return the first turn, which ends with calls of both tools."""
    async with sdk(api) as client:
        if not stream:
            return await client.messages.create(**QUESTION, tools=TOOLS)
        async with client.messages.stream(**QUESTION, tools=TOOLS) as events:
            return await events.get_final_message()


@pytest.mark.parametrize("stream", [False, True])
async def test_anthropics_sdk_runs_tools_and_gets_the_answer(stream: bool) -> None:
    async with served(calling_team()) as api, sdk(api) as client:
        responses = await run_tools(api, stream=stream)
        assert responses.stop_reason == "tool_use"
        assert [block.type for block in responses.content] == ["text", "tool_use", "tool_use"]
        assert [block.input for block in responses.content if block.type == "tool_use"] == [ROME, ROME]
        assert (responses.usage.input_tokens, responses.usage.output_tokens) == (10, 5)
        results = results_of(responses)
        messages: Any = [
            *QUESTION["messages"],
            {"role": "assistant", "content": responses.content},
            {"role": "user", "content": [*reversed(results), {"type": "text", "text": "Go on."}]},
        ]
        for _ in range(2):  # agents retry
            answer = await client.messages.create(**(QUESTION | {"messages": messages}), tools=TOOLS)
            (block,) = answer.content
            assert block.type == "text"
            assert (block.text, answer.stop_reason) == ("They gave: weather, clock.", "end_turn")
            assert answer.id == responses.id


async def test_a_tools_failure_reaches_the_step() -> None:
    async with served(calling_team()) as api, sdk(api) as client:
        responses = await run_tools(api, stream=False)
        content = [{"type": "text", "text": "no network"}, PICTURE]
        results = [each | {"content": content} for each in results_of(responses, is_error=True)]
        messages: Any = [
            *QUESTION["messages"],
            {"role": "assistant", "content": responses.content},
            {"role": "user", "content": results},
        ]
        answer = await client.messages.create(**(QUESTION | {"messages": messages}), tools=TOOLS)
    (block,) = answer.content
    assert block.type == "text"
    assert block.text == "They gave: ERROR no network, ERROR no network."


async def test_invalid_tool_arguments_are_returned_as_invalid_json() -> None:
    async with served(calling_team(arguments="[1")) as api:
        whole = await api.ok(QUESTION | {"tools": TOOLS}, PATH)
        streamed = await run_tools(api, stream=True)
    expected: Json = {"INVALID_JSON": "[1"}
    assert [block["input"] for block in whole["content"] if block["type"] == "tool_use"] == [expected] * 2
    assert [block.input for block in streamed.content if block.type == "tool_use"] == [expected] * 2


async def test_a_forged_id_is_an_error_in_the_dialects_form() -> None:
    forged = "call_" + "A" * 40
    messages: Any = [
        *QUESTION["messages"],
        {"role": "assistant", "content": [{"type": "tool_use", "id": forged, "name": "clock", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": forged, "content": "noon"}]},
    ]
    async with served(calling_team()) as api, sdk(api) as client:
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.create(**(QUESTION | {"messages": messages}), tools=TOOLS)
        turns: Any = [
            *ASK["messages"],
            {"role": "assistant", "tool_calls": [{"id": forged, "type": "function", "function": {"name": "clock", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": forged, "content": "noon"},
        ]  # fmt: skip
        with pytest.raises(openai.BadRequestError):
            await api.sdk.chat.completions.create(model="mini", messages=turns, tools=CHAT_TOOLS)


@pytest.mark.parametrize("who", ["only run", "other team", "alone"])
async def test_only_the_runs_key_may_send_its_tool_results(who: str, tmp_path: Path) -> None:
    body = ASK | {"model": "a", "tools": CHAT_TOOLS}
    async with keyed(tmp_path, team(workers=[tool_caller("a")], workflows={})) as it:
        turn = (await it.ask("mine", "POST", CHAT, body)).json()["choices"][0]["message"]
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "noon"} for call in turn["tool_calls"]
        ]
        body |= {"messages": [*ASK["messages"], turn, *results]}
        answer = await it.ask(who, "POST", CHAT, body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "not_allowed")
        assert "another API key" in answer.json()["error"]["message"]
        assert (await it.ask("mine", "POST", CHAT, body)).status_code == 200


async def test_tool_results_do_not_answer_an_equal_request() -> None:
    async with served(calling_team() | {"cache": {"keep_s": 60}}) as api, sdk(api) as client:
        for _ in range(2):
            responses = await run_tools(api, stream=False)
            assert responses.stop_reason == "tool_use"
            messages: Any = [
                *QUESTION["messages"],
                {"role": "assistant", "content": responses.content},
                {"role": "user", "content": results_of(responses)},
            ]
            answer = await client.messages.create(**(QUESTION | {"messages": messages}), tools=TOOLS)
            assert answer.stop_reason == "end_turn"
            await until(lambda: api.service.sessions.is_idle, "every answer is kept")


SCHEMA: Json = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}  # fmt: skip
FORMATS: dict[str, tuple[str, Json]] = {
    "response_format": (
        "/v1/chat/completions",
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}}},
    ),
    "text.format": (
        "/v1/responses",
        {"text": {"format": {"type": "json_schema", "name": "x", "strict": True, "schema": SCHEMA}}},
    ),
    "output_config.format": (
        PATH,
        {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    ),
}  # fmt: skip


def in_dialect(path: str, id: str, gave: str = "noon") -> Json:
    """Return a request with the result of one call of the clock."""
    if path == PATH:
        called = {"type": "tool_use", "id": id, "name": "clock", "input": {}}
        result = {"type": "tool_result", "tool_use_id": id, "content": gave}
        turns = [{"role": "assistant", "content": [called]}, {"role": "user", "content": [result]}]
        return {"model": "mini", "max_tokens": 100, "messages": [*ASK["messages"], *turns]}
    if path == "/v1/responses":
        call = {"type": "function_call", "call_id": id, "name": "clock", "arguments": "{}"}
        return {
            "model": "mini",
            "input": [
                *ASK["messages"],
                call,
                {"type": "function_call_output", "call_id": id, "output": gave},
            ],
        }
    function = {"id": id, "type": "function", "function": {"name": "clock", "arguments": "{}"}}
    turns = [
        {"role": "assistant", "tool_calls": [function]},
        {"role": "tool", "tool_call_id": id, "content": gave},
    ]
    return {"model": "mini", "messages": [*ASK["messages"], *turns]}


@pytest.mark.parametrize("field", FORMATS)
async def test_results_cannot_add_a_schema_to_a_run(field: str) -> None:
    path, format_fields = FORMATS[field]
    async with served(calling_team()) as api:
        whole = await api.ok(ASK | {"tools": CHAT_TOOLS[1:]})
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        body = in_dialect(path, call["id"])
        for _ in range(2):  # the run continues to wait
            refused = await api.http.post(path, json=body | format_fields)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, field)
        assert "They gave: noon." in (await api.http.post(path, json=body)).text
        late = await api.http.post(path, json=body | format_fields)  # still rejected once the answer exists
        assert (late.status_code, late.json()["error"]["param"]) == (400, field)


async def test_results_with_the_runs_original_schema_continue_it() -> None:
    path, format_fields = FORMATS["response_format"]
    async with served(calling_team()) as api:
        whole = await api.ok(ASK | {"tools": CHAT_TOOLS[1:]} | format_fields)
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        for more in (format_fields, {}):
            answer = await api.http.post(path, json=in_dialect(path, call["id"]) | more)
            # The format was enforced, and the worker writes prose.
            assert answer.json()["error"]["code"] == "answer_invalid"


async def test_an_invalid_answer_after_tools_is_repaired_once_without_tools() -> None:
    """A waiting run does not know of the repair, so each of its answers would be repaired again."""
    path, format_fields = FORMATS["response_format"]
    async with served(team(workers=[tool_caller("a", [["clock"]])], workflows={})) as api:
        whole = await api.ok({"model": "a", "tools": CHAT_TOOLS[1:]} | format_fields)
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        answer = await api.http.post(path, json=in_dialect(path, call["id"]))
        (step,) = (await api.newest())["steps"]
    assert answer.json()["error"]["code"] == "answer_invalid", answer.text
    assert [each["error"] for each in step["error"]["podium"]["attempts"]] == ["AnswerInvalid"]


@pytest.mark.parametrize(("path", "field"), [(PATH, "messages"), ("/v1/responses", "input")])
async def test_an_error_in_results_names_the_dialects_own_field(path: str, field: str) -> None:
    async with served(calling_team()) as api:
        forged = await api.http.post(path, json=in_dialect(path, "call_" + "A" * 40))
        assert (forged.status_code, forged.json()["error"]["param"]) == (400, field)
        whole = await api.ok(ASK | {"tools": CHAT_TOOLS[1:]})
        (call,) = whole["choices"][0]["message"]["tool_calls"]
        assert (await api.http.post(path, json=in_dialect(path, call["id"]))).status_code == 200
        other = await api.http.post(path, json=in_dialect(path, call["id"], "midnight"))
        assert (other.status_code, other.json()["error"]["param"]) == (400, field)


async def test_a_choice_of_one_tool_requires_its_name() -> None:
    async with served(calling_team()) as api:
        body: Json = {**QUESTION, "tools": TOOLS, "tool_choice": {"type": "tool"}}
        refused = await api.http.post(PATH, json=body)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")


async def test_a_background_runs_record_lists_the_results_that_it_waits_for() -> None:
    async with served(calling_team()) as api:
        run = (await api.post({"tools": CHAT_TOOLS[1:]}, background=True)).json()
        await until(lambda: api.service.running == 0, "it waits")
        record = await api.record(run["id"])
        assert record["status"] == "waiting"
        (call,) = record["waits_for"]
        assert (call["name"], json.loads(call["arguments"])) == ("clock", ROME)
        answer = await api.ok(in_dialect("/v1/chat/completions", call["id"]))
        assert answer["choices"][0]["message"]["content"] == "They gave: noon."
        record = await api.record(run["id"])
        assert (record["status"], "waits_for" in record) == ("finished", False)
