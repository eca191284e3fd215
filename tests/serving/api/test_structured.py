"""Structured output as clients use it: the official SDK's `parse`, plans, streams and errors."""

import asyncio
import json
from enum import Enum
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.serving.api.served import PRICE, TWO, Json, answer_text, scripted, served, team
from tests.states import until

SCHEMA: Json = {
    "type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False
}  # fmt: skip
STRICT: Json = {"response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}}}  # fmt: skip


class Kind(Enum):
    RAYLEIGH = "rayleigh"
    MIE = "mie"


class Cause(BaseModel):
    kind: Kind
    share: float | None
    inner: list["Cause"]


def pool(*replies: Any) -> Json:
    """Return settings with a plan of two steps. Worker `b` answers in the second."""
    workers = [scripted("a", "A reason.", price=PRICE), scripted("b", *replies, price=PRICE)]
    return team(TWO, workers=workers, workflows={})


async def test_the_sdk_parses_an_answer_into_the_clients_model():
    answer = {"kind": "rayleigh", "share": None, "inner": [{"kind": "mie", "share": 0.25, "inner": []}]}
    async with served(pool(json.dumps(answer))) as api:
        body: Any = {"model": "mini", "messages": [{"role": "user", "content": "Why?"}]}
        parsed = (
            (await api.sdk.chat.completions.parse(**body, response_format=Cause)).choices[0].message.parsed
        )
        async with api.sdk.chat.completions.stream(**body, response_format=Cause) as stream:
            streamed = (await stream.get_final_completion()).choices[0].message.parsed
    assert parsed == streamed == Cause.model_validate(answer)


async def test_only_the_answering_step_has_the_schema_and_the_record_shows_the_repair():
    async with served(pool("Blue.", '```\n{"n": 4}\n```')) as api:
        answer = await api.ok(STRICT, trace=True)
        first = api.worker("a").calls[0]
    assert answer["choices"][0]["message"]["content"] == '{"n": 4}'
    assert "JSON" not in str(first.messages)
    step = answer["podium"]["steps"][1]
    assert [each["error"] for each in step["attempts"]] == ["AnswerInvalid"]
    assert step["notes"] == ["The Markdown fence around the answer was removed."]


async def test_an_invalid_answer_never_reaches_a_client():
    async with served(pool("Blue.")) as api:
        whole = await api.post(STRICT)
        streamed = await api.post(STRICT | {"stream": True})
        with pytest.raises(openai.BadRequestError):
            await api.sdk.chat.completions.create(
                model="mini", messages=[{"role": "user", "content": "Why?"}], **STRICT
            )  # type: ignore[call-overload]
    assert (whole.status_code, whole.json()["error"]["code"]) == (400, "answer_invalid")
    assert whole.headers["x-should-retry"] == "false"
    assert "answer_invalid" in streamed.text
    assert "Blue." not in streamed.text


async def test_a_stream_holds_its_answer_until_it_is_valid_while_progress_continues():
    async with served(pool('{"n": 4}')) as api:
        events = await api.events(STRICT, progress="events")
    progress = [each for each in events if isinstance(each, dict) and each.get("choices") == []]
    assert answer_text(events) == '{"n": 4}'
    assert progress
    pieces = [c["delta"]["content"] for each in events if isinstance(each, dict) for c in each.get("choices", ()) if c["delta"].get("content")]  # fmt: skip
    assert pieces == ['{"n": 4}']


async def test_a_truncated_structured_answer_is_reported_as_such():
    async with served(pool('{"n": 4}')) as api:
        answer = await api.ok(STRICT | {"max_tokens": 1})
        with pytest.raises(openai.LengthFinishReasonError):
            await api.sdk.chat.completions.parse(
                model="mini",
                messages=[{"role": "user", "content": "Why?"}],
                max_tokens=1,
                response_format=Cause,
            )
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_json_object_and_text_are_valid_formats():
    async with served(pool("[1]", '{"any": "thing"}', "words")) as api:
        anything = await api.ok({"response_format": {"type": "json_object"}})
        text = await api.ok({"response_format": {"type": "text"}})
    assert anything["choices"][0]["message"]["content"] == '{"any": "thing"}'
    assert text["choices"][0]["message"]["content"] == "words"


async def test_a_non_strict_schema_is_not_enforced():
    lax = {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA}}
    async with served(pool("Blue.")) as api:
        answer = await api.ok({"response_format": lax}, trace=True)
    assert answer["choices"][0]["message"]["content"] == "Blue."
    assert "which is not strict" in answer["podium"]["steps"][1]["notes"][0]


@pytest.mark.parametrize(
    ("response_format", "param"),
    [
        ({"type": "yaml"}, "response_format.type"),
        ({"type": "json_schema"}, "response_format.json_schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, "response_format.json_schema.name"),
        ({"type": "json_schema", "json_schema": {"name": "a b", "schema": SCHEMA}}, "response_format.json_schema.name"),
        (
            {"type": "json_schema", "json_schema": {"name": "it", "strict": True, "schema": {"$ref": "http://a/b"}}},
            "response_format.json_schema.schema.$ref",
        ),
    ],
)  # fmt: skip
async def test_an_invalid_format_is_rejected_with_its_place(response_format: Json, param: str):
    async with served(pool("Blue.")) as api:
        answer = await api.post({"response_format": response_format})
        assert not api.worker("b").calls
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


async def test_a_fallback_is_called_before_an_invalid_answer_is_an_error():
    workers = [
        scripted("a", "A reason.", price=PRICE),
        scripted("b", "Blue.", fallbacks=["c"], price=PRICE),
        scripted("c", '{"n": 4}', price=PRICE),
    ]
    async with served(team(TWO, workers=workers, workflows={})) as api:
        answer = await api.ok(STRICT, trace=True)
    assert answer["choices"][0]["message"]["content"] == '{"n": 4}'
    assert [each["worker"] for each in answer["podium"]["steps"][1]["attempts"]] == ["b", "b"]


async def test_an_inner_team_must_follow_the_schema():
    inner = json.dumps({"worker": 0, "subtask": "Go.", "access": []})
    outer = json.dumps({"worker": 2, "subtask": "All of it.", "access": []})
    workers = [scripted("a", "Blue.", '{"n": 4}', price=PRICE), scripted("b", price=PRICE)]
    settings = team(outer, inner, workers=workers, workflows={}, models={"mini": {"depth": 1}})
    async with served(settings) as api:
        answer = await api.ok(STRICT)
        assert len(api.worker("a").calls) == 2
    assert answer["choices"][0]["message"]["content"] == '{"n": 4}'


async def test_a_client_that_leaves_while_its_answer_is_held_leaves_no_tasks():
    stalled = {"text": '{"n": 4}', "stall_after_tokens": 1}
    async with served(pool(stalled)) as api:
        asking = asyncio.create_task(api.post(STRICT))
        await until(lambda: api.worker("b").open_calls == 1, "the answer is held")
        asking.cancel()
        await api.quiet()


async def test_a_deadline_ends_a_held_answer():
    stalled = {"text": '{"n": 4}', "stall_after_tokens": 1}
    async with served(pool(stalled)) as api:
        answer = await api.post(STRICT, deadline_s=0.3)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "deadline_exceeded")


async def test_every_dialect_enforces_a_schema_and_rejects_remote_references():
    answer = {"kind": "mie", "share": 0.5, "inner": []}
    async with served(pool("Blue.", json.dumps(answer), "Blue.", '{"n": 4}')) as api:
        parsed = await api.sdk.responses.parse(model="mini", input="Why?", text_format=Cause)
        claude = api.anthropic()
        body: Any = {"model": "mini", "max_tokens": 99, "messages": [{"role": "user", "content": "Why?"}]}
        message = await claude.messages.create(
            **body, output_config={"format": {"type": "json_schema", "schema": SCHEMA}}
        )
        bad = {"type": "json_schema", "schema": {"type": "object", "allOf": [{"$ref": "http://a/b"}]}}
        places = ({"text": {"format": bad | {"name": "it"}}}, {"output_config": {"format": bad}})
        refused = [
            await api.http.post(path, json={"model": "mini"} | words | place)
            for path, words, place in (
                ("/v1/responses", {"input": "Why?"}, places[0]),
                ("/v1/messages", body, places[1]),
            )
        ]
    assert parsed.output_parsed == Cause.model_validate(answer)
    assert [block.text for block in message.content if block.type == "text"] == ['{"n": 4}']
    assert [each.status_code for each in refused] == [400, 400]
    assert "text.format.schema.allOf.0.$ref" in refused[0].text
    assert "output_config.format.schema.allOf.0.$ref" in refused[1].text
