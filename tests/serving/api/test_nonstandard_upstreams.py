"""Sloppy upstreams behind the real API: what clients of each dialect get from each wire, in each position of a run."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.serving.api.served import PRICE, Json, Served, plan, scripted, served, step, team
from tests.serving.workers import test_nonstandard_answers as sloppy
from tests.serving.workers.fuzz_streams import DIALECTS
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving

KINDS: dict[str, Json] = {
    "openai": {"kind": "openai"},
    "responses": {"kind": "openai", "api": "responses"},
    "anthropic": {"kind": "anthropic"},
    "gemini": {"kind": "gemini"},
}
ROWS = {
    "openai": sloppy.CHAT,
    "responses": sloppy.RESPONSES,
    "anthropic": sloppy.ANTHROPIC,
    "gemini": sloppy.GEMINI,
}
WIRES = list(KINDS)
QUESTION = [{"role": "user", "content": "What is the weather in Rome, and what time is it?"}]
NAMES = ("get_weather", "get_time")
CHAT_TOOLS: Any = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in NAMES
]
OWN_TOOLS: Any = [{"name": name, "input_schema": {"type": "object", "properties": {}}} for name in NAMES]
ITEM_TOOLS: Any = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
    for name in NAMES
]
Reply = tuple[str, list[tuple[str, Any]], str | None]
"""Words, calls, and finish reason."""
Ask = Callable[[Served, str, bool, bool], Awaitable[Reply]]


def remote(wire: str, url: str, **settings: Any) -> Json:
    path = DIALECTS[wire].path
    retry = {"attempts": 2, "first_wait_s": 0.01}
    worker_settings = {"name": "a", "model": "m", "base_url": url + path, "price": PRICE, "retry": retry}
    return worker_settings | KINDS[wire] | settings


async def chat(api: Served, model: str, stream: bool, tools: bool) -> Reply:
    fields: Json = {"model": model, "messages": QUESTION} | ({"tools": CHAT_TOOLS} if tools else {})
    async with api.sdk as sdk:
        if stream:
            async with sdk.chat.completions.stream(**fields) as events:
                answer: Any = await events.get_final_completion()
        else:
            answer = await sdk.chat.completions.create(**fields)
    choice = answer.choices[0]
    calls = [
        (each.function.name, json.loads(each.function.arguments)) for each in choice.message.tool_calls or ()
    ]
    return choice.message.content or "", calls, choice.finish_reason


async def messages(api: Served, model: str, stream: bool, tools: bool) -> Reply:
    fields: Json = {"model": model, "max_tokens": 200, "messages": QUESTION}
    fields |= {"tools": OWN_TOOLS} if tools else {}
    async with api.anthropic() as sdk:
        if stream:
            async with sdk.messages.stream(**fields) as events:
                answer: Any = await events.get_final_message()
        else:
            answer = await sdk.messages.create(**fields)
    words = "".join(each.text for each in answer.content if each.type == "text")
    calls = [(each.name, each.input) for each in answer.content if each.type == "tool_use"]
    return words, calls, {"end_turn": "stop", "tool_use": "tool_calls"}.get(answer.stop_reason)


async def responses(api: Served, model: str, stream: bool, tools: bool) -> Reply:
    fields: Json = {"model": model, "input": QUESTION[0]["content"]} | (
        {"tools": ITEM_TOOLS} if tools else {}
    )
    async with api.sdk as sdk:
        if stream:
            async with sdk.responses.stream(**fields) as events:
                answer: Any = await events.get_final_response()
        else:
            answer = await sdk.responses.create(**fields)
    calls = [
        (each.name, json.loads(each.arguments)) for each in answer.output if each.type == "function_call"
    ]
    return answer.output_text, calls, "tool_calls" if calls else "stop"


CLIENTS: dict[str, Ask] = {"chat": chat, "messages": messages, "responses": responses}
PLACES = {"by its name": "a", "through a model": "mini"}


def whole_team(*workers: Json) -> Json:
    return team(plan(step("a", "Answer.")), workers=list(workers), workflows={"duo": [step("a"), step("b", "Go on.", [0])]})  # fmt: skip


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("name", WIRES)
async def test_text_and_tool_calls_reach_every_client(name: str, client: str, stream: bool):
    """The worst answers of each wire, by the worker's name and through a model."""
    names = ("a character in halves", "a lone half at the end", "parallel calls under one index", "whole JSON", "whole JSON with calls",
              "calls under 'end_turn'", "calls under 'TOOL_CALLS'", "words, `tool_calls` and no call", "words, `tool_use` and no call",
              "finish_reason '' on the running chunks", "content as parts", "arguments in halves", "STOP before the first word",
              "a list of chunks as JSON", "words with the end alone", "events without names")  # fmt: skip
    rows = {each: row for each, row in ROWS[name].items() if each in names}
    assert len(rows) >= 4
    async with serving(DIALECTS[name].wire) as upstream, served(whole_team(remote(name, upstream.url), scripted("b"))) as api:  # fmt: skip
        for what, row in rows.items():
            for place, model in PLACES.items():
                upstream.answers.append(Answer(instead=tuple(row.events)))
                text = await CLIENTS[client](api, model, stream, bool(row.calls))
                calls = [(tool, json.loads(arguments)) for tool, arguments in row.calls]
                finish = "tool_calls" if row.calls else "stop"
                assert (what, place, text) == (what, place, (row.text, calls, finish))
        assert len(upstream.requests) == 2 * len(rows), "each was asked once"


@pytest.mark.parametrize("row", ["a character in halves", "a lone half", "a lone half at the end"])
@pytest.mark.parametrize("name", WIRES)
async def test_split_characters_are_joined_before_other_calls_and_the_store(name: str, row: str):
    text = ROWS[name][row].text
    async with (
        serving(DIALECTS[name].wire, Answer(instead=tuple(ROWS[name][row].events))) as upstream,
        serving(OpenAIWire()) as other,
        served(whole_team(remote(name, upstream.url), remote("openai", other.url, name="b"))) as api,
    ):
        answer = await api.ok({"model": "duo"})
        record = await api.record(answer["podium"]["workflow_id"])
    assert answer["choices"][0]["message"]["content"] == sloppy.FOUR
    assert text in json.dumps(other.body["messages"], ensure_ascii=False)
    assert record["steps"][0]["output"] == text


@pytest.mark.parametrize("position", ["a", "mini", "duo"])
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("together", [False, True], ids=["in its own packet", "in one packet with words"])
@pytest.mark.parametrize("name", WIRES)
async def test_an_answer_continues_after_a_malformed_event(
    name: str, together: bool, stream: bool, position: str
):
    first, last = sloppy.CUT[name]
    broken = b'data: {"choices": [{"del\n\n'
    if name == "anthropic":
        broken = b"event: content_block_delta\n" + broken
    events = (first + broken, last) if together else (first, broken, last)

    def respond(request: Request) -> Answer:
        """Continue the partial answer, whether it is the last turn or quoted in the prompt."""
        request_text = json.dumps(request.body)
        mark = "[continued] It is"
        return Answer(
            text=f"{mark} four."
            if mark in request_text
            else "four."
            if '"It is' in request_text
            else sloppy.FOUR
        )

    async with serving(DIALECTS[name].wire) as upstream:
        upstream.respond = respond
        upstream.answers.append(Answer(instead=events, pause_after=len(events) - 1))
        async with served(whole_team(remote(name, upstream.url), scripted("b", "Whole."))) as api:
            if stream:
                chunks = [each for each in await api.events({"model": position}) if isinstance(each, dict)]
                assert "error" not in chunks[-1]
                text = "".join(
                    choice["delta"].get("content") or ""
                    for each in chunks
                    for choice in each.get("choices", ())
                )
            else:
                text = (await api.ok({"model": position}))["choices"][0]["message"]["content"]
            record = await api.newest()
    assert text == ("Whole." if position == "duo" else sloppy.FOUR)
    assert record["steps"][0]["output"] == sloppy.FOUR
    assert len(upstream.requests) == 2


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("events", sloppy.NO_CALL.values(), ids=sloppy.NO_CALL.keys())
async def test_a_missing_tool_call_is_requested_again_or_a_clear_error(
    events: list[bytes], stream: bool, request: pytest.FixtureRequest
):
    name = request.node.callspec.id.partition("-")[0].partition(",")[0]
    first_answer = Answer(instead=tuple(events))
    async with serving(DIALECTS[name].wire, first_answer) as upstream:
        async with served(whole_team(remote(name, upstream.url), scripted("b"))) as api:
            assert (await chat(api, "a", stream, True))[0] == sloppy.FOUR
        upstream.respond = lambda _: first_answer
        async with served(whole_team(remote(name, upstream.url), scripted("b"))) as api:
            refused = await api.post({"model": "a", "tools": CHAT_TOOLS, "stream": stream})
    assert "sent no tool call" in refused.text
    assert "the request offers none" not in refused.text
