"""Table of the scenarios that every client runs: how the pool is scripted, what the client sends, and what it must
see. An ask is plain JSON, so that programs in other languages can read it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.serving.api.served import Json, plan, scripted, step, team

QUESTION = "Why is the sky blue?"
PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
"""PNG of one pixel, in base64."""
SCHEMA: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Scenario:
    """One row.

    Args:
        name: of the row.
        settings: of the server.
        ask: what the client sends: `model`, `text`, `stream`, `tools` (names; each has one argument, `city`),
            `schema`, `image`, `leave` (close the stream at its first text).
        output: what it must report: `text`, `turns` (names of the tools called, turn by turn), `status` of an error.
    """

    name: str
    settings: Json
    ask: Json
    output: Json = field(default_factory=dict)


def caller(name: str, *turns: tuple[str, ...], then: str = "Got: {results}") -> Json:
    """Return a worker that calls these tools turn by turn and then answers."""
    replies: list[Any] = [
        {"text": "", "calls": [{"name": tool, "arguments": {"city": "Rome"}} for tool in tools]}
        for tools in turns
    ]
    return scripted(name, *replies, then)


SOON: Json = {"store": {"asked_again_s": 0.2}}
"""Setting that ends a run soon after its client has left."""


def one(worker: Json, **more: Any) -> Json:
    """Return a pool in which a plan of one step goes to `worker`."""
    settings = team(plan(step(worker["name"], "Answer.")), workers=[worker | more], workflows={})
    return settings | {"models": {"podium": {}}}


def asks(output: Json, **ask: Any) -> tuple[Json, Json]:
    return {"model": "podium", "text": QUESTION, "tools": [], "stream": False} | ask, {
        "text": "",
        "turns": [],
        "status": 0,
    } | output


THREE = team(
    plan(step("reader", "Read."), step("editor", "Edit.", [0]), step("teller", "Tell.", [0, 1])),
    workers=[caller("reader", ("look",)), caller("editor", ("clock",)), scripted("teller", "All done.")],
    workflows={},
) | {"models": {"podium": {}}}
TABLE = [
    Scenario("text", one(scripted("a", "It scatters.")), *asks({"text": "It scatters."})),
    Scenario("stream", one(scripted("a", "It scatters.")), *asks({"text": "It scatters."}, stream=True)),
    Scenario(
        "tools",
        one(caller("a", ("look",))),
        *asks({"text": "Got: look of Rome", "turns": [["look"]]}, tools=["look", "clock"]),
    ),
    Scenario(
        "tools in a stream",
        one(caller("a", ("look",))),
        *asks({"text": "Got: look of Rome", "turns": [["look"]]}, tools=["look"], stream=True),
    ),
    Scenario(
        "parallel tools",
        one(caller("a", ("look", "clock"), then="Done.")),
        *asks({"text": "Done.", "turns": [["look", "clock"]]}, tools=["look", "clock"]),
    ),
    Scenario(
        "many turns of tools",
        one(caller("a", *[("look",), ("clock",)] * 4, then="Done.")),
        *asks({"text": "Done.", "turns": [["look"], ["clock"]] * 4}, tools=["look", "clock"]),
    ),
    Scenario(
        "two of three steps use tools",
        THREE,
        *asks({"text": "All done.", "turns": [["look"], ["clock"]]}, tools=["look", "clock"], stream=True),
    ),
    Scenario(
        "structured output",
        one(scripted("a", json.dumps({"n": 4}))),
        *asks({"text": '{"n": 4}'}, schema=SCHEMA),
    ),
    Scenario(
        "image", one(scripted("a", "A dot."), sees_images=True), *asks({"text": "A dot."}, image=PICTURE)
    ),
    Scenario("no such model", one(scripted("a")), *asks({"status": 404}, model="nobody")),
    Scenario("bad value", one(scripted("a")), *asks({"status": 400}, tools=["no good name"])),
    Scenario(
        "cancel",
        one(scripted("a", {"text": "One two three four.", "stall_after_tokens": 2})) | SOON,
        *asks({"text": "One"}, stream=True, leave=True),
    ),
]
KILLED = Scenario(
    "a router killed between call and result",
    THREE,
    *asks({"text": "All done.", "turns": [["look"], ["clock"]]}, tools=["look", "clock"]),
)
