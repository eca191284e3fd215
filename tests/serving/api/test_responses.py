"""`POST /v1/responses` with the official SDK, and as agents use it."""

from typing import Any

import openai
import pytest
from openai.types.responses import ResponseOutputText, response_create_params
from pydantic import BaseModel

from serving.api.dialects.responses.schema import LOGPROBS, WITHOUT_EFFECT, ResponsesRequest
from tests.serving.api.served import Json, Served, scripted, served, team
from tests.serving.api.tool_caller import tool_caller

ANSWER = "Blue light scatters most."
PATH = "/v1/responses"


async def ask(api: Served, **body: Any) -> Any:
    return await api.http.post(PATH, json={"model": "mini", "input": "Why is the sky blue?"} | body)


async def rejection_of(api: Served, **body: Any) -> Json:
    answer = await ask(api, **body)
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]


async def test_the_sdk_gets_an_answer() -> None:
    async with served(team()) as api, api.sdk as sdk:
        answer = await sdk.responses.create(model="mini", input="Why is the sky blue?", metadata={"a": "b"})
    assert (answer.output_text, answer.status, answer.object, answer.model) == (
        ANSWER,
        "completed",
        "response",
        "mini",
    )
    assert (answer.metadata, answer.store, answer.error) == ({"a": "b"}, True, None)
    assert answer.output[0].to_dict()["phase"] == "final_answer"
    assert answer.usage is not None
    assert answer.usage.total_tokens > answer.usage.input_tokens + answer.usage.output_tokens, (
        "of the whole team"
    )


async def test_the_sdk_gets_a_stream_and_a_final_response() -> None:
    async with served(team()) as api, api.sdk as sdk:
        stream = await sdk.responses.create(model="mini", input="Why?", stream=True)
        events: list[Any] = [event async for event in stream]
        async with sdk.responses.stream(model="mini", input="Why?") as helper:
            final = await helper.get_final_response()
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == ANSWER
    assert events[-1].response.output_text == final.output_text == ANSWER


async def test_plan_and_progress_are_reasoning_if_a_summary_is_requested() -> None:
    async with served(team()) as api, api.sdk as sdk:
        body: Json = {"model": "mini", "input": "Why?", "reasoning": {"summary": "auto"}}
        whole = await sdk.responses.create(**body)
        quiet = await sdk.responses.create(model="mini", input="Why?")
        opaque = await sdk.responses.create(**body, store=False, include=["reasoning.encrypted_content"])
        again = await sdk.responses.create(
            model="mini",
            input=[*opaque.to_dict()["output"], {"role": "user", "content": "And at dusk?"}],  # type: ignore[misc]
        )
        messages = api.worker("b").calls[-1].messages
    reasoning: Any = whole.output[0]
    assert reasoning.type == "reasoning"
    assert "Step 1, a: Find a reason." in reasoning.summary[0].text
    assert reasoning.encrypted_content is None
    assert [item.type for item in quiet.output] == ["message"]
    opaque_item: Any = opaque.output[0]
    assert opaque_item.encrypted_content
    assert again.output_text == ANSWER
    assert "Step 1" not in str(messages), "our own reasoning comes back, and goes no further"


async def test_instructions_and_every_kind_of_input_reach_the_worker() -> None:
    items: list[Json] = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "Hi."}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "somebody else's"},
        {"type": "message", "role": "assistant", "phase": "commentary",
         "content": [{"type": "output_text", "text": "I look.", "annotations": []}]},
        {"type": "function_call", "call_id": "x.1|y", "name": "look", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "x2", "name": "patch", "input": "***"},
        {"type": "custom_tool_call_output", "call_id": "x2", "output": "patched"},
        {"type": "function_call_output", "call_id": "x.1|y", "output": [{"type": "input_text", "text": "seen"}]},
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {"type": "item_reference", "id": "rs_abc"},
        {"role": "user", "content": "And now?"},
    ]  # fmt: skip
    async with served(team(workers=[tool_caller("a")], workflows={})) as api:
        answer = await ask(api, model="a", instructions="You are Ann.", input=items)
        assert answer.status_code == 200, answer.text
        worker: Any = next(wire for wire in api.service.pool.clients if wire.name == "a")
        messages = worker.requests[-1].messages
        record = await api.newest()
    assert [(m.role, m.text) for m in messages[:2]] == [
        ("system", "You are Ann.\n\nBe short."),
        ("user", "Hi."),
    ]
    turn, results = messages[2:4]
    assert (turn.text, [(c.id, c.name, c.kind) for c in turn.tool_calls]) == (
        "I look.", [("x.1|y", "look", "function"), ("x2", "patch", "custom")],
    )  # fmt: skip
    assert {r.id: r.text for r in results.tool_results} == {"x2": "patched", "x.1|y": "seen"}
    assert messages[-1].text == "And now?"
    assert record["left_out"] == [
        "input[8] was ignored, because items of type 'web_search_call' are not supported."
    ]


REFUSED: dict[str, tuple[Json, str]] = {
    "no model": ({"model": None}, "model"),
    "no input": ({"input": []}, "input"),
    "a number": ({"input": 3}, "input"),
    "an odd item": ({"input": [{"type": "computer_call"}]}, "input[0].type"),
    "a shell of OpenAI's": ({"input": [{"type": "local_shell_call", "id": "x"}]}, "input[0].type"),
    "an empty message": ({"input": [{"role": "user", "content": ""}]}, "input[0].content"),
    "a picture by file": ({"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]}, "input[0].content[0].file_id"),
    "a picture that is none": ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "file:///x"}]}]}, "input[0].content[0].image_url"),
    "a file": ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input"),
    "another's compaction": ({"input": [{"type": "compaction", "encrypted_content": "gAAA"}]}, "input[0].encrypted_content"),
    "an unknown item": ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].id"),
    "an unknown response": ({"previous_response_id": "resp_1"}, "previous_response_id"),
    "a conversation beside a response": ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
    "a conversation that is none": ({"conversation": 3}, "conversation"),
    "a prompt": ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    "too many logprobs": ({"top_logprobs": 21}, "top_logprobs"),
    "background without store": ({"background": True, "store": False}, "background"),
    "a hosted tool that must be called": ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tools[0]"),
    "a hosted tool by name": ({"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}}, "tool_choice.type"),
    "a tool that is not there": ({"tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
    "an odd choice": ({"tool_choice": "maybe"}, "tool_choice"),
    "a tool without a name": ({"tools": [{"type": "function"}]}, "tools[0].name"),
    "a limit with a typing error": ({"podium": {"max_step": 3}}, "podium.max_step"),
    "a format": ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
}  # fmt: skip


async def test_an_unsupported_field_that_affects_the_answer_is_rejected_by_name() -> None:
    async with served(team()) as api:
        for what, (body, param) in REFUSED.items():
            error = await rejection_of(api, **body)
            assert error["param"] == param, (what, error)
            assert error["type"] == "invalid_request_error"
        assert not api.worker("conductor").calls


async def test_fields_and_tools_of_codex_are_accepted() -> None:
    """The fields and tools of Codex, and all fields without effect."""
    codex: Json = {
        "tools": [
            {"type": "function", "name": "exec_command", "strict": False, "parameters": {"type": "object"}},
            {"type": "namespace", "name": "multi_agent_v1", "description": "d", "tools": [
                {"type": "function", "name": "spawn_agent", "strict": False, "parameters": {"type": "object"}}]},
            {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto", "parallel_tool_calls": True, "reasoning": {"summary": "auto"}, "store": False,
        "include": ["reasoning.encrypted_content"], "prompt_cache_key": "k", "client_metadata": {"a": "b"},
    }  # fmt: skip
    nothing: Json = {
        "user": "u", "service_tier": "auto", "truncation": "auto", "max_tool_calls": 3, "safety_identifier": "s",
        "stream_options": {"include_obfuscation": False}, "text": {"format": {"type": "text"}, "verbosity": "low"},
        "temperature": 0.2, "top_p": 0.9, "max_output_tokens": 1000, "top_logprobs": 0, "conversation": None,
        "metadata": None, "reasoning": None, "tools": None, "tool_choice": None, "previous_response_id": None,
    }  # fmt: skip
    async with served(team(workers=[scripted("a", "Fine.")], workflows={})) as api:
        answer = await ask(api, model="a", **codex)
        assert answer.status_code == 200, answer.text
        record = await api.newest()
        assert (await ask(api, **nothing)).status_code == 200
        verbosity, options = (await api.newest())["left_out"]
    assert verbosity.startswith("text.verbosity")
    assert options == "'stream_options' was ignored, because it has no effect on this server."
    assert record["left_out"] == [
        "tools[3] was ignored, because tools of type 'web_search' are not supported.",
        "'client_metadata' was ignored, because it has no effect on this server.",
    ]
    assert [tool["type"] for tool in answer.json()["tools"]] == ["function", "namespace", "custom"]


class Sky(BaseModel):
    colour: str


async def test_the_sdk_parses_an_answer_that_matches_its_schema() -> None:
    async with (
        served(team(workers=[scripted("a", '{"colour": "blue"}')], workflows={})) as api,
        api.sdk as sdk,
    ):
        answer = await sdk.responses.parse(model="a", input="Which?", text_format=Sky)
    assert answer.output_parsed == Sky(colour="blue")
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == "json_schema"


@pytest.mark.parametrize(
    "fields", [{"include": [LOGPROBS]}, {"include": [LOGPROBS], "top_logprobs": 2}, {"top_logprobs": 2}]
)
async def test_logprobs_are_returned_whole_streamed_and_on_retrieval(fields: Json) -> None:
    async with served(team(workers=[scripted("a", "first word")], workflows={})) as api, api.sdk as sdk:
        whole = await sdk.responses.create(model="a", input="Say.", **fields)
        again = await sdk.responses.retrieve(whole.id)
        stream = [
            event
            async for event in await sdk.responses.create(model="a", input="Say.", stream=True, **fields)
        ]
        call = api.worker("a").calls[0]
    assert call.sampling.options.top_logprobs == fields.get("top_logprobs", 0)
    assert whole.top_logprobs == fields.get("top_logprobs", 0)
    parts: list[Any] = [answer.output[0].content[0] for answer in (whole, again, stream[-1].response)]  # type: ignore[union-attr]
    for part in parts:
        assert isinstance(part, ResponseOutputText)
        lines = ResponseOutputText.model_validate(part.model_dump()).logprobs or []
        assert [(each.token, each.bytes, each.logprob) for each in lines] == [
            ("first", list(b"first"), 0.0), (" word", list(b" word"), 0.0),
        ]  # fmt: skip
    tokens = [
        each.token
        for event in stream
        if event.type == "response.output_text.delta"
        for each in event.logprobs
    ]
    [done] = [event for event in stream if event.type == "response.output_text.done"]
    assert tokens == [each.token for each in done.logprobs] == ["first", " word"]


async def test_logprobs_that_the_worker_does_not_support_are_rejected_by_field() -> None:
    claude = {"name": "a", "kind": "anthropic", "model": "claude-sonnet-5", "api_key_env": "K"}
    async with served(team(workers=[claude, scripted("b"), scripted("c")]), environ={"K": "k"}) as api:
        assert (await rejection_of(api, model="a", include=[LOGPROBS]))["param"] == "include"
        assert (await rejection_of(api, model="a", top_logprobs=1))["param"] == "top_logprobs"
        assert (await rejection_of(api, model="a", presence_penalty=1))["param"] == "presence_penalty"


async def test_a_truncated_answer_is_incomplete() -> None:
    async with (
        served(team(workers=[scripted("a", "one two three four")], workflows={})) as api,
        api.sdk as sdk,
    ):
        whole = await sdk.responses.create(model="a", input="Count.", max_output_tokens=2)
        stream = await sdk.responses.create(model="a", input="Count.", max_output_tokens=2, stream=True)
        last: Any = [event async for event in stream][-1]
    assert whole.incomplete_details is not None
    assert (whole.status, whole.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert (last.type, last.response.incomplete_details.reason) == (
        "response.incomplete",
        "max_output_tokens",
    )


FAILS = {"text": "one two three", "fail_after_tokens": 2}


@pytest.mark.parametrize(
    ("workers", "fields", "status", "code"),
    [
        ([scripted("a", {"error": "unavailable"}, retry={"attempts": 1})], {}, 502, "worker_unavailable"),
        ([scripted("a", {"error": "refused"})], {}, 400, "worker_refused"),
        ([scripted("a", {"error": "overflow"})], {}, 400, "context_length_exceeded"),
        ([scripted("a", "x", price={"input_usd_per_mtok": 1, "output_usd_per_mtok": 2})],
         {"podium": {"max_cost_usd": 1e-9}}, 429, "insufficient_quota"),
    ],
)  # fmt: skip
async def test_an_agent_retries_exactly_the_temporary_errors(
    workers: list[Json], fields: Json, status: int, code: str
) -> None:
    """Codex retries 30 times after a 5xx, so only retryable errors may be one."""
    async with served(team(workers=workers, workflows={})) as api:
        answer = await ask(api, model="a", **fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), answer.text
    assert answer.headers["x-should-retry"] == ("true" if status >= 500 else "false")


async def test_a_billed_failed_run_is_not_retried() -> None:
    """Even if the failed step could be retried, because earlier steps were paid too."""
    paid = [scripted("a", "A reason."), scripted("b", {"error": "unavailable"}, retry={"attempts": 1})]
    settings = team(
        workers=paid, workflows={"duo": [{"worker": "a", "subtask": "x"}, {"worker": "b", "access": [0]}]}
    )
    async with served(settings) as api, api.sdk as sdk:
        answer = await ask(api, model="duo")
        assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false")
        with pytest.raises(openai.BadRequestError):
            await sdk.with_options(max_retries=2).responses.create(model="duo", input="x")
        assert len(api.worker("a").calls) == 2


async def test_a_failure_after_the_first_byte_is_a_failed_response_with_a_known_code() -> None:
    async with served(team(workers=[scripted("a", FAILS)], workflows={})) as api, api.sdk as sdk:
        stream = await sdk.responses.create(model="a", input="x", stream=True)
        events: list[Any] = [event async for event in stream]
    last = events[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.code in ("server_error", "invalid_prompt")
    assert last.response.output[0].content[0].text == "one two", "what was said stands"
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_a_heartbeat_is_an_event_that_resets_idle_timers() -> None:
    slow = scripted("a", "x y", delay_s=0.5)
    settings = team(workers=[slow], workflows={}, limits={"heartbeat_s": 0.1, "first_byte_s": 0.05})
    async with served(settings) as api, api.sdk as sdk:
        stream = await sdk.responses.create(model="a", input="x", stream=True)
        events = [event async for event in stream]
    assert [event.type for event in events].count("response.in_progress") > 2
    assert [event.sequence_number for event in events] == list(range(len(events)))


def test_every_field_of_the_sdk_is_supported_or_rejected() -> None:
    """Each is supported, rejected because it would change the answer, or known to have no effect."""
    base = response_create_params.ResponseCreateParamsBase
    fields = (
        base.__annotations__.keys()
        | response_create_params.ResponseCreateParamsNonStreaming.__annotations__.keys()
    )
    assert fields - ResponsesRequest.model_fields.keys() == WITHOUT_EFFECT
