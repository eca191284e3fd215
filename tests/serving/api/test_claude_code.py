"""Requests of Claude Code 2.1.330, reduced to their shape, through a plan of three steps, two of which use its tools.
Recorded against this server: it streams, returns our signed reasoning, adds defaults to tool inputs, turns blocks
into strings and moves `cache_control`.
"""

import json
from typing import Any

from tests.serving.api.served import Json, Served, plan, served, step
from tests.serving.api.test_messages_runs import blocks_of, events_of, joined
from tests.serving.api.tool_caller import tool_caller

PLAN = plan(step("reader", "Read it."), step("editor", "Repair it.", [0]), step("teller", "Tell.", [0, 1]))
SETTINGS: Json = {
    "conductor": {"worker": "conductor"},
    "workers": [
        {"name": "conductor", "kind": "scripted", "replies": [PLAN], "in_pool": False},
        tool_caller("reader", [["Read"]]),
        tool_caller("editor", [["Edit"]]),
        {"name": "teller", "kind": "scripted", "replies": ["It is repaired."]},
    ],
    "models": {"podium": {}},
}
EPHEMERAL: Json = {"cache_control": {"type": "ephemeral"}}
SCHEMA: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "additionalProperties": False,
}
TOOLS = [{"name": name, "description": "", "input_schema": SCHEMA} for name in ("Bash", "Edit", "Read")]
HEADERS = {
    "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,effort-2025-11-24", "x-api-key": "k", "x-app": "cli",
    "x-stainless-retry-count": "0",
}  # fmt: skip


async def ask(api: Served, messages: list[Json], *, shows: bool = False) -> tuple[str, list[Any], list[Json]]:
    """Return the stop reason of the message, its calls, and its content as Claude Code keeps it."""
    body = {
        "model": "podium", "max_tokens": 32000, "stream": True, "messages": messages, "tools": TOOLS,
        "system": [{"type": "text", "text": "x-anthropic-billing-header: v;"}, {"type": "text", "text": "S", **EPHEMERAL}],
        "metadata": {"user_id": "{}"}, "thinking": {"type": "adaptive", "display": "summarized" if shows else "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}, "output_config": {"effort": "high"},
    }  # fmt: skip
    answer = await api.http.post("/v1/messages?beta=true", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    events = events_of(answer.content)
    ended = next(event["delta"]["stop_reason"] for event in events if event["type"] == "message_delta")
    content: list[Json] = []
    for block, deltas in blocks_of(events):
        blocks = joined(block, deltas)
        match block["type"]:
            case "text":
                content.append({"type": "text", "text": blocks})
            case "thinking":
                content.append({"type": "thinking", "thinking": blocks, "signature": deltas[-1]["signature"]})
            case _:
                id, name, arguments = blocks
                content.append(
                    {"type": "tool_use", "id": id, "name": name, "input": arguments | {"replace_all": False}}
                )
    return ended, [block for block in content if block["type"] == "tool_use"], content


def result(call: Json, text: str) -> Json:
    return {
        "role": "user",
        "content": [{"tool_use_id": call["id"], "type": "tool_result", "content": text, **EPHEMERAL}],
    }


async def test_a_plan_of_three_steps_uses_its_tools_in_one_run() -> None:
    async with served(SETTINGS) as api:
        first: Json = {"role": "user", "content": [{"type": "text", "text": "Fix the typo.", **EPHEMERAL}]}
        ended, (read,), content = await ask(api, [first], shows=True)
        assert (ended, read["name"]) == ("tool_use", "Read")
        assert content[0]["type"] == "thinking"
        history: list[Json] = [
            {"role": "user", "content": "Fix the typo."},
            {"role": "assistant", "content": content},
            result(read, "1\tprint('helo')"),
        ]
        ended, (edit,), content = await ask(api, history)
        assert (ended, edit["name"]) == ("tool_use", "Edit")
        history += [{"role": "assistant", "content": content}, result(edit, "The file has been updated.")]
        for _ in range(2):  # the second request is a retry, as after a connection error
            ended, calls, content = await ask(api, history)
            assert (ended, calls) == ("end_turn", [])
            assert content[-1] == {"type": "text", "text": "It is repaired."}
        listed = (await api.http.get("/v1/workflows")).json()["data"]
        assert len(listed) == 1, "one run"
        record = await api.record(listed[0]["id"])
    assert [each["worker"] for each in record["steps"]] == ["reader", "editor", "teller"]
    outputs = [json.dumps(each["output"]) for each in record["steps"]]
    assert "helo" in outputs[0]
    assert "updated" in outputs[1]
