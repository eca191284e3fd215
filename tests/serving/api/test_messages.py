"""Anthropic's Messages with the official SDK, over a real socket."""

import json
from typing import Any

import anthropic
import pytest
from pydantic import BaseModel

from tests.serving.api.served import ASK, Json, Served, plan, scripted, served, step, team


class City(BaseModel):
    city: str
    population: int


ANSWER = "Blue light scatters most."
QUESTION: Json = {"model": "mini", "max_tokens": 100, "messages": ASK["messages"]}
PATH = "/v1/messages"
DOT = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
PICTURE: Json = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DOT}}


def sdk(api: Served) -> anthropic.AsyncAnthropic:
    return api.anthropic()


async def create(api: Served, **fields: Any) -> anthropic.types.Message:
    async with sdk(api) as client:
        return await client.messages.create(**(QUESTION | fields))


async def test_the_sdk_gets_an_answer() -> None:
    async with served(team()) as api:
        answer = await create(api)
    (block,) = answer.content
    assert (block.type, block.type == "text" and block.text) == ("text", ANSWER)
    assert (answer.role, answer.model, answer.stop_reason) == ("assistant", "mini", "end_turn")
    assert answer.usage.input_tokens > 0
    assert answer.usage.output_tokens > 0
    assert answer.model_extra is not None
    assert answer.model_extra["podium"]["workflow_id"] == "wf_" + answer.id.removeprefix("msg_")


@pytest.mark.parametrize(
    ("stops", "stop_sequence"), [(["X", "END"], "END"), (["X"], None), (["END", " END"], " END")]
)
async def test_the_sdk_gets_the_stop_sequence_that_ended_the_answer(
    stops: list[str], stop_sequence: str | None
) -> None:
    settings = team(workers=[scripted("a", "One END two.")], workflows={})
    async with served(settings) as api, sdk(api) as client:
        fields: Json = QUESTION | {"model": "a", "stop_sequences": stops}
        whole = await client.messages.create(**fields)
        async with client.messages.stream(**fields) as stream:
            final = await stream.get_final_message()
    for each in (whole, final):
        assert (each.stop_reason, each.stop_sequence) == (
            "stop_sequence" if stop_sequence else "end_turn",
            stop_sequence,
        )


async def test_the_sdks_stream_helper_gets_the_same_answer_in_pieces() -> None:
    async with served(team()) as api, sdk(api) as client:
        whole = await client.messages.create(**QUESTION)
        async with client.messages.stream(**QUESTION) as stream:
            pieces = [text async for text in stream.text_stream]
            final = await stream.get_final_message()
    assert len(pieces) > 3
    assert "".join(pieces) == ANSWER
    assert [block.type for block in final.content] == ["text"]
    assert (final.stop_reason, final.usage.input_tokens) == ("end_turn", whole.usage.input_tokens)
    assert final.usage.output_tokens == whole.usage.output_tokens


async def test_on_request_the_plan_is_shown_as_signed_thinking_that_may_be_sent_back() -> None:
    thinking: Any = {"type": "adaptive", "display": "summarized"}
    async with served(team()) as api, sdk(api) as client:
        async with client.messages.stream(**QUESTION, thinking=thinking) as stream:
            final = await stream.get_final_message()
        whole = await client.messages.create(**QUESTION, thinking=thinking)
        turns: Any = [
            *QUESTION["messages"],
            {"role": "assistant", "content": final.content},
            *QUESTION["messages"],
        ]
        await client.messages.create(**(QUESTION | {"model": "a", "messages": turns}))
        messages = api.worker("a").calls[-1].messages
    for answer in (final, whole):
        thought, text_block = answer.content
        assert thought.type == "thinking"
        assert "Step 1, a: Find a reason." in thought.thinking
        assert thought.signature
        assert text_block.type == "text"
        assert text_block.text == ANSWER
    assert [message.text for message in messages][1] == ANSWER


@pytest.mark.parametrize("thinking", [None, {"type": "disabled"}, {"type": "adaptive", "display": "omitted"}])
async def test_without_a_request_no_thinking_is_shown(thinking: Any) -> None:
    fields = {"thinking": thinking} if thinking else {}
    async with served(team()) as api:
        answer = await create(api, **fields)
    assert [block.type for block in answer.content] == ["text"]


async def test_the_requests_parameters_reach_the_worker() -> None:
    turns = [
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": [{"type": "text", "text": "Yes."}]},
        {"role": "system", "content": "Be quick."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "Two?", "cache_control": {"type": "ephemeral"}}],
        },
    ]
    fields: Json = {
        "model": "a", "messages": turns, "system": [{"type": "text", "text": "Be brief."}], "stop_sequences": ["END"],
        "temperature": 0.3, "metadata": {"user_id": "u"}, "output_config": {"effort": "low"}, "context_management": {"edits": []},
    }  # fmt: skip
    async with served(team()) as api:
        answer = await api.ok(fields | {"max_tokens": 50}, PATH)
        call = api.worker("a").calls[0]
    assert answer["type"] == "message"
    assert [(m.role, m.text) for m in call.messages] == [
        ("system", "Be brief.\n\nBe quick."), ("user", "One?"), ("assistant", "Yes."), ("user", "Two?"),
    ]  # fmt: skip
    sampling = call.sampling
    assert (sampling.max_output_tokens, sampling.temperature, sampling.stop) == (50, 0.3, ("END",))
    assert sampling.effort == "low"


async def test_an_image_and_a_document_reach_a_worker_that_accepts_them() -> None:
    document = {
        "type": "document",
        "title": "Notes",
        "source": {"type": "text", "media_type": "text/plain", "data": "Sky."},
    }
    there = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}
    content: Any = [document, PICTURE, there, {"type": "text", "text": "What is it?"}]
    async with served(team(workers=[scripted("seeing", sees_images=True)], workflows={})) as api:
        await create(api, model="seeing", messages=[{"role": "user", "content": content}])
        (message,) = api.worker("seeing").calls[0].messages
    assert message.text == "Notes\nSky.\nWhat is it?"
    assert [part.url for part in message.parts if hasattr(part, "url")] == [
        f"data:image/png;base64,{DOT}", "https://example.com/a.png",
    ]  # fmt: skip


async def test_an_image_that_no_worker_accepts_is_rejected_with_its_place() -> None:
    turns = [{"role": "user", "content": "Hi."}, {"role": "user", "content": [PICTURE]}]
    async with served(team()) as api:
        answer = await api.http.post(PATH, json=QUESTION | {"system": "Be brief.", "messages": turns})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "messages[1].content")


TOOL: Json = {"name": "clock", "input_schema": {"type": "object"}}
REFUSED: dict[str, tuple[Json, str]] = {
    "no limit": ({"max_tokens": None}, "max_tokens"),
    "a limit of nothing": ({"max_tokens": 0}, "max_tokens"),
    "no messages": ({"messages": []}, "messages"),
    "an empty message": ({"messages": [{"role": "user", "content": ""}]}, "messages[0].content"),
    "a role nobody has": ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
    "a PDF": (
        {"messages": [{"role": "user", "content": [
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": DOT}}]}]},
        "messages[0].content[0].source",
    ),
    "a file": (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "file", "file_id": "f"}}]}]},
        "messages[0].content[0].source",
    ),
    "a picture that is none": (
        {"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "?"}}]}]},
        "messages[0].content[0].source",
    ),
    "a block nobody knows": ({"messages": [{"role": "user", "content": [{"type": "smell"}]}]}, "messages[0].content[0]"),
    "a call of the user": (
        {"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "b", "input": {}}]}]},
        "messages[0].content[0]",
    ),
    "a tool of another dialect": ({"tools": [{"type": "function", "function": {"name": "clock"}}]}, "tools[0].type"),
    "a tool without a schema": ({"tools": [{"name": "clock"}]}, "tools[0].input_schema"),
    "a call that only a hosted tool may answer": (
        {"tools": [{"type": "web_search_20260318", "name": "web_search"}], "tool_choice": {"type": "any"}}, "tools[0]",
    ),
    "a tool that is not there": ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "tool_choice"),
    "top_k": ({"top_k": -5}, "top_k"),
    "heat": ({"temperature": 1.5}, "temperature"),
    "an unknown limit": ({"podium": {"max_stepz": 1}}, "podium.max_stepz"),
}  # fmt: skip


async def test_an_unsupported_field_returns_400_with_its_name() -> None:
    async with served(team()) as api:
        for name, (body, param) in REFUSED.items():
            answer = await api.http.post(PATH, json=QUESTION | body)
            error_body = answer.json()
            assert (answer.status_code, error_body["error"].get("param")) == (400, param), (name, answer.text)
            assert (error_body["type"], error_body["error"]["type"]) == ("error", "invalid_request_error")
            assert error_body["request_id"]
        assert not api.worker("conductor").calls


async def test_unsupported_fields_of_agents_are_ignored_and_noted() -> None:
    fields: Json = {
        "tools": [{"type": "web_search_20260318", "name": "web_search"}, TOOL | {"defer_loading": True}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "mcp_servers": [{"type": "url", "name": "m", "url": "https://example.com"}],
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "service_tier": "auto",
        "container": None,
        "something_new": [1],
    }
    headers = {"anthropic-beta": "a-2026,b-2026", "anthropic-version": "2023-06-01", "x-api-key": "k"}
    async with served(team()) as api:
        answer = await api.http.post(f"{PATH}?beta=true", json=QUESTION | fields, headers=headers)
        assert answer.status_code == 200, answer.text
        record = await api.record(answer.json()["podium"]["workflow_id"])
    assert record["left_out"] == [
        "tools[0] was ignored, because tools of type 'web_search_20260318' are not supported.",
        "mcp_servers[0] was ignored, because tools of type 'mcp' are not supported.",
        "'context_management' was ignored, because it has no effect on this server.",
        "'service_tier' was ignored, because it has no effect on this server.",
        "'something_new' was ignored, because it has no effect on this server.",
        "anthropic-beta 'a-2026,b-2026' was ignored, because it has no effect on this server.",
    ]


async def test_tokens_are_counted_without_a_run() -> None:
    async with served(team()) as api, sdk(api) as client:
        short = await client.messages.count_tokens(model="mini", messages=QUESTION["messages"])
        tools: Any = [TOOL]
        more = await client.messages.count_tokens(
            model="mini", messages=QUESTION["messages"], system="Be brief. " * 40, tools=tools
        )
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(model="nobody", messages=QUESTION["messages"])
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(model="mini", messages=[])
        assert not api.worker("conductor").calls
    assert 0 < short.input_tokens < 20
    assert more.input_tokens > short.input_tokens + 100


async def test_an_answer_must_match_the_sdks_schema() -> None:
    workers = [scripted("a", '{"city": "Paris", "population": 2000000}'), scripted("b", "Paris, I think.")]
    async with served(team(workers=workers, workflows={})) as api, sdk(api) as client:
        body = QUESTION | {"model": "a"}
        answer = await client.messages.parse(**body, output_format=City)
        with pytest.raises(anthropic.BadRequestError) as missed:
            await client.messages.parse(**(QUESTION | {"model": "b"}), output_format=City)
        bad: Any = {"format": {"type": "json_schema", "schema": {"type": "strange"}}}
        with pytest.raises(anthropic.BadRequestError, match=r"output_config\.format\.schema"):
            await create(api, model="a", output_config=bad)
    assert answer.parsed_output == City(city="Paris", population=2_000_000)
    assert missed.value.response.headers["x-should-retry"] == "false"


async def test_anthropics_sdk_can_list_the_models() -> None:
    async with served(team()) as api, sdk(api) as client:
        names = [model.id async for model in client.models.list()]
        one = await client.models.retrieve("mini")
    assert names[:2] == ["mini", "ultra"]
    assert (one.id, one.type) == ("mini", "model")


async def test_failures_are_raised_as_the_sdks_own_errors() -> None:
    workers = [scripted("a", {"error": "refused"}), scripted("b", {"error": "overflow"})]
    async with served(team(workers=workers, workflows={})) as api:
        with pytest.raises(anthropic.NotFoundError) as missing:
            await create(api, model="nobody")
        with pytest.raises(anthropic.InternalServerError) as refused:
            await create(api, model="a")
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long: "):
            await create(api, model="b")
        assert missing.value.type == "not_found_error"
        assert refused.value.status_code == 502
        assert refused.value.type == "api_error"
        assert refused.value.response.headers["x-should-retry"] == "false"
        assert refused.value.body["request_id"].startswith("wf_")  # type: ignore[index]


async def test_a_failure_in_the_middle_of_a_stream_is_an_error_event() -> None:
    workers = [scripted("a", {"text": "Blue light scatters most of all.", "fail_after_tokens": 3})]
    body = QUESTION | {"model": "a"}
    async with (
        served(team(workers=workers, workflows={})) as api,
        sdk(api) as client,
        client.messages.stream(**body) as stream,
    ):
        with pytest.raises(anthropic.APIStatusError) as caught:
            await stream.get_final_message()
    assert caught.value.type == "api_error"


async def test_pings_are_sent_during_silence() -> None:
    workers = [scripted("a", "Late.", delay_s=0.4)]
    limits = {"heartbeat_s": 0.05, "first_byte_s": 0.05}
    async with served(team(workers=workers, workflows={}, limits=limits)) as api:
        answer = await api.http.post(PATH, json=QUESTION | {"model": "a", "stream": True})
    assert answer.text.count("event: ping\n") > 3


async def test_progress_may_be_sent_next_to_pings() -> None:
    async with served(team(plan(step("a", "Answer.")))) as api:
        answer = await api.http.post(PATH, json=QUESTION | {"stream": True, "podium": {"progress": "events"}})
    frames = [frame for frame in answer.text.split("\n\n") if frame.startswith("event: ping")]
    progress = [json.loads(frame.partition("data: ")[2]).get("podium") for frame in frames]
    assert any(each and each["type"] == "step_planned" for each in progress)


async def test_an_image_may_be_longer_than_the_text_limit() -> None:
    padded = DOT + "A" * 4096
    picture = PICTURE | {"source": PICTURE["source"] | {"data": padded.replace("=", "A")}}
    limits = {"max_text_bytes": 2048}
    workers = [scripted("seeing", sees_images=True)]
    async with served(team(workers=workers, workflows={}, limits=limits)) as api:
        fields = QUESTION | {"model": "seeing"}
        response = await api.http.post(
            PATH, json=fields | {"messages": [{"role": "user", "content": [picture]}]}
        )
        document = {"type": "document", "source": {"type": "text", "data": "x" * 4096}}
        read = await api.http.post(
            PATH, json=fields | {"messages": [{"role": "user", "content": [document]}]}
        )
    assert response.status_code == 200, response.text
    assert (read.status_code, read.json()["error"]["type"]) == (413, "invalid_request_error")
