"""Tools of the client are offered to workers, or the client or record says that they were not."""

import json

import pytest

from tests.serving.api.served import Json, plan, scripted, served, step, team

CALL: Json = {"calls": [{"name": "get_weather", "arguments": {"city": "Rome"}}]}
PLAIN, PLAIN_TOO = (scripted(name, "Sunny.", calls_tools=False) for name in ("plain", "plain-too"))
ABLE = scripted("able", CALL, "Rain.")
FLOWS = {"dull": [step("plain")], "last-dull": [step("able", "Look."), step("plain", "Say.", [0])]}
SCHEMA: Json = {"type": "object", "properties": {"city": {"type": "string"}}}
CHAT_TOOLS: list[Json] = [{"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}]
FLAT_TOOLS: list[Json] = [{"type": "function", "name": "get_weather", "parameters": SCHEMA}]
CLAUDE_TOOLS: list[Json] = [{"name": "get_weather", "input_schema": SCHEMA}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}
QUESTION: list[Json] = [{"role": "user", "content": "Weather in Rome?"}]
CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
DIALECTS: dict[str, Json] = {
    CHAT: {"messages": QUESTION, "tools": CHAT_TOOLS},
    MESSAGES: {"messages": QUESTION, "tools": CLAUDE_TOOLS, "max_tokens": 99},
    RESPONSES: {"input": "Weather in Rome?", "tools": FLAT_TOOLS},
}
FORCED: list[tuple[str, object]] = [
    (CHAT, "required"),
    (CHAT, NAMED),
    (CHAT, ALLOWED),
    (MESSAGES, {"type": "any"}),
    (MESSAGES, {"type": "tool", "name": "get_weather"}),
    (RESPONSES, "required"),
    (RESPONSES, {"type": "function", "name": "get_weather"}),
]
WHO: dict[str, Json] = {
    "a worker": {"model": "plain"},
    "a workflow": {"model": "dull"},
    "the end of a workflow": {"model": "last-dull"},
    "a plan of one's own": {"model": "mini", "podium": {"plan": [step("plain")]}},
    "a plan that keeps the tools from its answer": {
        "model": "mini",
        "podium": {"plan": [{**step("able"), "tools": False}]},
    },
    "a part of the pool": {"model": "mini", "podium": {"workers": ["plain", "plain-too"]}},
    "what is left of the pool": {"model": "mini", "podium": {"exclude_workers": ["able"]}},
}


def mixed_team(*plans: str, **settings: object) -> Json:
    return team(*plans, workers=[PLAIN, ABLE, PLAIN_TOO], workflows=FLOWS, **settings)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("who", WHO)
@pytest.mark.parametrize(("path", "choice"), FORCED, ids=str)
async def test_a_required_tool_that_no_worker_can_call_returns_400(
    path: str, choice: object, who: str, stream: bool
) -> None:
    async with served(mixed_team(plan(step("able")))) as api:
        body = DIALECTS[path] | WHO[who] | {"tool_choice": choice, "stream": stream}
        answer = await api.http.post(path, json=body)
        calls = [len(api.worker(name).calls) for name in ("conductor", "plain", "able", "plain-too")]
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "tool_choice" in error["message"]
    assert "calls_tools" in error["message"]
    assert path == MESSAGES or error["param"] == "tool_choice"
    assert calls == [0, 0, 0, 0]


@pytest.mark.parametrize("who", ["a worker", "a workflow", "a part of the pool"])
@pytest.mark.parametrize("path", DIALECTS)
async def test_optional_tools_that_no_worker_can_call_are_noted_on_the_record(path: str, who: str) -> None:
    async with served(mixed_team(plan(step("plain")))) as api:
        answer = await api.http.post(path, json=DIALECTS[path] | WHO[who])
        assert (answer.status_code, "Sunny." in answer.text) == (200, True)
        record = await api.newest()
    assert "calls_tools" in json.dumps(record["left_out"])
    assert ["calls_tools" in json.dumps(each["notes"]) for each in record["steps"]] == [True]


async def test_a_step_whose_worker_calls_no_tools_is_noted() -> None:
    async with served(mixed_team(plan(step("plain", "Guess."), step("able", "Look.", [0])))) as api:
        await api.ok(DIALECTS[CHAT])
        record = await api.newest()
        offered = [len(api.worker(name).calls[0].tools.tools) for name in ("plain", "able")]
    assert offered == [0, 1]
    assert "left_out" not in record
    assert ["calls_tools" in json.dumps(each["notes"]) for each in record["steps"]] == [True, False]


@pytest.mark.parametrize(
    "tools", [{}, {"tools": CHAT_TOOLS, "tool_choice": "none"}], ids=["none", "none may be called"]
)
async def test_a_request_without_callable_tools_leaves_no_note(tools: Json) -> None:
    async with served(mixed_team()) as api:
        await api.ok({"model": "plain", "messages": QUESTION} | tools)
        record = await api.newest()
    assert "left_out" not in record
    assert "calls_tools" not in json.dumps(record["steps"])


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "plans",
    [
        [plan(step("plain")), plan(step("able"))],
        [plan(step("able", "Look."), step("plain", "Say.", [0])), plan(step("able"))],
        [plan({**step("able"), "tools": False}), plan(step("able"))],
        [plan(step("plain")), plan(step("plain"))],
        ["no plan", "no plan"],
    ],
    ids=["one step", "the last of two", "without tools", "twice", "no plan"],
)
async def test_a_forced_call_is_planned_for_a_worker_that_can_make_it(plans: list[str], stream: bool) -> None:
    body = DIALECTS[CHAT] | {"tool_choice": "required", "stream": stream}
    async with served(mixed_team(*plans, conductor={"worker": "conductor", "fallback": "plain"})) as api:
        answer = await api.post(body)
        assert (answer.status_code, "get_weather" in answer.text) == (200, True), answer.text
        assert "Sunny." not in answer.text


async def test_without_a_plan_a_worker_that_calls_tools_answers() -> None:
    async with served(mixed_team("no plan", conductor={"worker": "conductor", "fallback": "plain"})) as api:
        assert "get_weather" in (await api.post(DIALECTS[CHAT])).text
        assert "Sunny." in (await api.post({"messages": QUESTION})).text, "where there are no tools"


async def test_the_models_list_shows_tool_support() -> None:
    async with served(mixed_team()) as api:
        listed = (await api.http.get("/v1/models")).json()["data"]
    calls_tools = {
        each["id"]: each["podium"].get("calls_tools") for each in listed if each["podium"]["kind"] == "worker"
    }
    assert calls_tools == {"conductor": True, "plain": False, "able": True, "plain-too": False}
