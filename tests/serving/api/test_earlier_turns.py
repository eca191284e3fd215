"""Tool turns of earlier requests: they go out unchanged, with the provider's ids, reasoning and arguments, whatever
the client made of them. The servers here sign their turns and reject any change.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.databases import make_file
from tests.serving.api.served import Json, Served, plan, scripted, served, step, team
from tests.serving.api.test_upstreams import remote
from tests.serving.store.stores import replicas
from tests.serving.workers.test_http import PROVIDERS
from tests.wires.server import Wire, WireServer, serving
from tests.wires.signing import SigningAnthropic, SigningChat, SigningGemini, SigningResponses

SCHEMA: Json = {"type": "object", "properties": {"path": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("read", "write")]
WIRES: dict[str, tuple[str, Any, Json]] = {
    "chat": ("openai", SigningChat(), {}),
    "responses": ("openai", SigningResponses(), {"api": "responses"}),
    "anthropic": ("anthropic", SigningAnthropic(), {"like": "claude-opus-4-7"}),
    "gemini": ("gemini", SigningGemini(), {}),
}
each_wire = pytest.mark.parametrize("wire", WIRES)
each_model = pytest.mark.parametrize("model", ["a", "mini"])


def settings_for(wire: str, url: str) -> Json:
    kind, _, more = WIRES[wire]
    worker = remote(PROVIDERS[kind], url, effort="high", **more)
    return team(plan(step("a", "")), workers=[worker, scripted("b")], workflows={})


def wire_of(wire: str) -> Wire:
    return PROVIDERS[WIRES[wire][0]].wire


class Agent:
    """Client of Chat Completions that runs tools until it gets an answer, and reformats arguments."""

    def __init__(self, model: str) -> None:
        self._model = model
        self.turns: list[Json] = [{"role": "system", "content": "Be short."}]

    async def ask(self, api: Served, words: str, headers: Json | None = None) -> str:
        self.turns.append({"role": "user", "content": words})
        while True:
            body = {"model": self._model, "messages": self.turns, "tools": TOOLS}
            answer = await api.http.post("/v1/chat/completions", json=body, headers=headers or {})
            assert answer.status_code == 200, answer.text
            message = answer.json()["choices"][0]["message"]
            self.turns.append({"role": "assistant", "content": message["content"]})
            if not message.get("tool_calls"):
                return message["content"]
            self.turns[-1]["tool_calls"] = [_anew(call) for call in message["tool_calls"]]
            self.turns += [
                {"role": "tool", "tool_call_id": call["id"], "content": "R"} for call in message["tool_calls"]
            ]


def _anew(call: Json) -> Json:
    arguments = json.loads(call["function"]["arguments"]) | {"limit": 100}
    return call | {"function": call["function"] | {"arguments": json.dumps(arguments, indent=2)}}


@each_wire
@each_model
async def test_a_later_question_is_sent_with_unchanged_tool_turns(wire: str, model: str) -> None:
    async with serving(wire_of(wire)) as upstream:
        upstream.respond = WIRES[wire][1].respond
        async with served(settings_for(wire, upstream.url)) as api:
            agent = Agent(model)
            for words in ("Mend it.", "And now?", "Are you sure?"):
                assert await agent.ask(api, words) == "done"
            record = await api.newest()
    assert record["status"] == "finished"
    assert '"limit"' not in json.dumps([request.body for request in upstream.requests])


@each_wire
async def test_another_router_reads_the_turns_from_the_store(wire: str, tmp_path: Path) -> None:
    async with serving(wire_of(wire)) as upstream:
        upstream.respond = WIRES[wire][1].respond
        settings = settings_for(wire, upstream.url)
        async with replicas(make_file(tmp_path / "podium.db"), settings) as (one, other):
            agent = Agent("a")
            assert await agent.ask(one.api, "Mend it.") == "done"
            assert await agent.ask(other.api, "And now?") == "done"
            assert await agent.ask(one.api, "Are you sure?") == "done"


async def test_turns_of_a_deleted_response_are_sent_from_the_clients_history() -> None:
    tools = [{"type": "function", "name": "read", "parameters": SCHEMA}]
    items: list[Json] = [{"role": "user", "content": "Mend it."}]
    async with serving(wire_of("chat")) as upstream:
        upstream.respond = SigningChat().respond
        async with served(settings_for("chat", upstream.url)) as api:
            while True:
                answer = await api.http.post(
                    "/v1/responses", json={"model": "a", "input": items, "tools": tools}
                )
                assert answer.status_code == 200, answer.text
                response = answer.json()
                if not (calls := [each for each in response["output"] if each["type"] == "function_call"]):
                    break
                items += [
                    {key: each[key] for key in ("type", "call_id", "name", "arguments")} for each in calls
                ]
                items += [
                    {"type": "function_call_output", "call_id": each["call_id"], "output": "R"}
                    for each in calls
                ]
            items += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "And now?"}]
            await api.quiet()
            assert (await api.http.delete(f"/v1/responses/{response['id']}")).status_code == 200
            upstream.respond = type(upstream)(wire_of("chat")).respond  # no longer checks signatures
            await api.http.post("/v1/responses", json={"model": "a", "input": items, "tools": tools})
            assert not any(message.get("reasoning_content") for message in upstream.body["messages"])


async def prefix_after(change: Any, upstream: WireServer) -> tuple[list[Any], list[Any]]:
    """Return the messages of the last request of a first run, and those of the next turn after `change`."""
    upstream.respond = SigningChat().respond
    async with served(settings_for("chat", upstream.url)) as api:
        agent = Agent("a")
        await agent.ask(api, "Mend it.")
        before = upstream.body["messages"]
        upstream.respond = type(upstream)(wire_of("chat")).respond  # no longer checks signatures
        change(agent.turns)
        await agent.ask(api, "And now?")
    return before, upstream.body["messages"][: len(before)]


async def test_the_next_request_starts_with_the_bytes_of_the_last_one() -> None:
    async with serving(wire_of("chat")) as upstream:
        before, after = await prefix_after(lambda turns: None, upstream)
    assert json.dumps(before) == json.dumps(after)


def _change_system(turns: list[Json]) -> None:
    turns[0]["content"] = "Be long."


def _change_question(turns: list[Json]) -> None:
    turns[1]["content"] = "Break it."


@pytest.mark.parametrize("change", [_change_system, _change_question])
async def test_turns_after_a_changed_beginning_are_sent_from_the_clients_history(change: Any) -> None:
    async with serving(wire_of("chat")) as upstream:
        _, after = await prefix_after(change, upstream)
    assert not any(message.get("reasoning_content") for message in after)
    assert '\\"limit\\"' in json.dumps(after)


async def test_turns_after_a_changed_result_are_sent_as_the_client_has_them() -> None:
    def change(turns: list[Json]) -> None:
        turns[3]["content"] = "[cleared]"

    async with serving(wire_of("chat")) as upstream:
        before, after = await prefix_after(change, upstream)
    assert after[2] == before[2]
    assert after[3]["content"] == "[cleared]"
    assert not any(message.get("reasoning_content") for message in after[3:])
