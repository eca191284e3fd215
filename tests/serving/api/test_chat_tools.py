"""Tools in Chat Completions, from the request to the run and back to OpenAI's SDK."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from conductor.errors import BadTask
from conductor.model.messages import AUTO, Image, Message, Text, Tool, ToolCall, ToolChoice, ToolResult
from conductor.run.events import AnswerDelta, Event, RunCancelled, RunFailed, RunFinished, RunSuspended
from conductor.run.record import RunRecords
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.request import ApiRequest
from tests.serving.api.runs import call_id, encode, record_of, runs, suspension, tool_calls
from tests.serving.api.served import ASK, Json, served, team

CHAT = ChatDialect()
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
WEATHER: Json = {
    "type": "function",
    "function": {"name": "weather", "description": "Now.", "parameters": SCHEMA, "strict": True},
}
CLOCK: Json = {"type": "function", "function": {"name": "clock"}}
PATCH: Json = {"type": "custom", "custom": {"name": "patch", "format": {"type": "grammar", "grammar": {}}}}
SEARCH: Json = {"type": "web_search"}
CALL: Json = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "weather", "arguments": '{"city":"Rome"}'},
}
USER: Json = {"role": "user", "content": "And in Rome?"}


def parse(**fields: Any) -> ApiRequest:
    return CHAT.parse(json.dumps(ASK | fields).encode())


def test_tools_of_every_form_are_accepted() -> None:
    tools = parse(tools=[WEATHER, CLOCK, PATCH], parallel_tool_calls=False).tools
    assert tools.tools == (
        Tool("weather", "Now.", SCHEMA, strict=True),
        Tool("clock"),
        Tool("patch", kind="custom", format={"type": "grammar", "grammar": {}}),
    )
    assert (tools.choice, tools.parallel) == (AUTO, False)


def named(name: str) -> Json:
    return {"type": "function", "function": {"name": name}}


@pytest.mark.parametrize(
    ("tool_choice", "choice"),
    [
        (None, AUTO),
        ("auto", AUTO),
        ("none", ToolChoice("none")),
        ("required", ToolChoice("required")),
        (named("clock"), ToolChoice("required", ("clock",))),
        ({"type": "custom", "custom": {"name": "patch"}}, ToolChoice("required", ("patch",))),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [named("clock"), named("patch")]}},
            ToolChoice("auto", ("clock", "patch")),
        ),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("clock")]}},
            ToolChoice("required", ("clock",)),
        ),
    ],
)  # fmt: skip
def test_every_tool_choice_is_accepted(tool_choice: Any, choice: ToolChoice) -> None:
    assert parse(tools=[WEATHER, CLOCK, PATCH], tool_choice=tool_choice).tools.choice == choice


def test_hosted_tools_are_ignored_and_noted_unless_required() -> None:
    only_search = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [SEARCH]}}
    for choice in (None, "auto", "none", named("clock"), only_search):
        request = parse(tools=[SEARCH, CLOCK], tool_choice=choice)
        assert [tool.name for tool in request.tools.tools] == ["clock"]
        assert request.left_out == (
            "tools[0] was ignored, because tools of type 'web_search' are not supported.",
        )
    assert not parse(tools=[SEARCH, CLOCK], tool_choice=only_search).tools


async def test_the_record_lists_ignored_tools() -> None:
    async with served(team()) as api:
        answer = await api.ok({"tools": [SEARCH]})
        record = await api.record(answer["podium"]["workflow_id"])
    assert record["left_out"] == [
        "tools[0] was ignored, because tools of type 'web_search' are not supported."
    ]


REJECTED: dict[str, tuple[Json, str]] = {
    "a call that only a hosted tool may answer": ({"tools": [SEARCH, CLOCK], "tool_choice": "required"}, "tools[0]"),
    "a hosted tool by its type": ({"tools": [SEARCH, CLOCK], "tool_choice": {"type": "web_search"}}, "tool_choice"),
    "a call of nothing": ({"tool_choice": "required"}, "tool_choice"),
    "a tool that is not there": ({"tools": [CLOCK], "tool_choice": named("weather")}, "tool_choice"),
    "hosted tools alone, allowed and required": (
        {"tools": [SEARCH], "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [SEARCH]}}},
        "tool_choice",
    ),
    "two of one name": ({"tools": [CLOCK, CLOCK]}, "tools"),
    "no name": ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name"),
    "a name with spaces": ({"tools": [named("my clock")]}, "tools[0].function.name"),
    "parameters that are no schema": (
        {"tools": [{"type": "function", "function": {"name": "x", "parameters": [1]}}]}, "tools[0].function.parameters",
    ),
    "no tool": ({"tools": [1]}, "tools[0]"),
    "a choice nobody knows": ({"tools": [CLOCK], "tool_choice": "perhaps"}, "tool_choice"),
    "a call of the user": ({"messages": [USER | {"tool_calls": [CALL]}]}, "messages[0].tool_calls"),
    "a call without an id": (
        {"messages": [USER, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "x"}}]}]},
        "messages[1].tool_calls[0].id",
    ),
    "a result of nothing": ({"messages": [USER, {"role": "tool", "content": "x"}]}, "messages[1].tool_call_id"),
}  # fmt: skip


@pytest.mark.parametrize("name", REJECTED)
def test_an_invalid_tool_request_is_rejected_by_field(name: str) -> None:
    body, param = REJECTED[name]
    with pytest.raises(BadTask) as caught:
        parse(**body)
    assert caught.value.param == param


PARTS = [
    {"type": "text", "text": "20"},
    {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}},
]


def test_calls_and_their_results_are_parts_of_the_conversation() -> None:
    patch = {"id": "call_2", "type": "custom", "custom": {"name": "patch", "input": "- a"}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL, patch]},
        {"role": "tool", "tool_call_id": "call_2", "content": PARTS},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        {"role": "assistant", "content": "One more.", "tool_calls": [CALL | {"id": "call_3"}]},
        {"role": "tool", "tool_call_id": "call_3", "content": ""},
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "clock", "arguments": None}}]},
    ]
    rome = '{"city":"Rome"}'
    assert parse(messages=turns).conversation == (
        Message.of("user", "And in Rome?"),
        Message("assistant", (ToolCall("call_1", "weather", rome), ToolCall("call_2", "patch", "- a", "custom"))),
        Message("tool", (ToolResult("call_2", (Text("20"), Image("https://x.example/a.png"))),)),
        Message("tool", (ToolResult("call_1", (Text("sunny"),)),)),
        Message("assistant", (Text("One more."), ToolCall("call_3", "weather", rome))),
        Message("tool", (ToolResult("call_3"),)),
        Message("assistant", (ToolCall("c", "clock", ""),)),
    )  # fmt: skip


def test_tools_count_as_text() -> None:
    without = parse().text_chars
    assert parse(tools=[WEATHER]).text_chars > without + len(json.dumps(SCHEMA)) - 20


def chunks_of(stream: bytes) -> list[Json]:
    events = stream.decode().removesuffix("\n\n").split("\n\n")
    assert events.pop() == "data: [DONE]"
    return [json.loads(event.removeprefix("data: ")) for event in events]


@given(runs(), st.booleans(), st.sampled_from(["off", "events", "reasoning"]))
def test_the_sdk_can_parse_every_run(events: list[Event], with_usage: bool, progress: str) -> None:
    request = parse(stream=True, stream_options={"include_usage": with_usage}, podium={"progress": progress})
    chunks = chunks_of(encode(CHAT, request, *events))
    last = events[-1]
    if isinstance(last, RunFailed | RunCancelled):
        assert chunks.pop()["error"]["message"]
    state = ChatCompletionStreamState()
    for chunk in chunks:
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk, strict=True))
    whole = state.current_completion_snapshot
    text = "".join(event.text for event in events if isinstance(event, AnswerDelta))
    assert (whole.choices[0].message.content or "") == text
    match last:
        case RunFinished(finish=finish):
            assert whole.choices[0].finish_reason == finish.value
        case RunSuspended(calls=calls):
            assert whole.choices[0].finish_reason == "tool_calls"
            assert [
                (call.id, call.function.name, call.function.arguments)
                for call in whole.choices[0].message.tool_calls or ()
                if call.type == "function"
            ] == [(call_id(each.number), each.call.name, each.call.arguments or "{}") for each in calls]
        case _:
            assert [chunk["choices"][0]["finish_reason"] for chunk in chunks if chunk["choices"]][-1] is None
    assert (whole.usage is not None) == (with_usage and isinstance(last, RunFinished | RunSuspended))


@given(st.lists(tool_calls, min_size=1, max_size=5))
def test_the_sdk_can_parse_every_body_with_tool_calls(calls: list[ToolCall]) -> None:
    body = CHAT.body(RunRecords(record_of(*suspension(*calls))), parse(), call_id)
    answer = ChatCompletion.model_validate(body, strict=True)
    message = answer.choices[0].message
    assert (message.content, answer.choices[0].finish_reason) == (None, "tool_calls")
    assert [call.id for call in message.tool_calls or ()] == [call_id(number) for number in range(len(calls))]


def test_a_custom_tool_is_called_with_text() -> None:
    events = suspension(ToolCall("", "patch", "- a", "custom"))
    answer = ChatCompletion.model_validate(CHAT.body(RunRecords(record_of(*events)), parse(), call_id))
    (call,) = answer.choices[0].message.tool_calls or ()
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("patch", "- a")
