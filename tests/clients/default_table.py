"""Requests and expectations for the rows of the table that the default settings can do. Their model has 135 million
parameters, so the expectations are weaker. `UNABLE` gives the reason for each missing row. This module knows no SDK
and no server.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.table import KILLED, TABLE, Scenario, asks
from tests.serving.api.served import Json

ROOM = 600
"""Maximum tokens per answer. A small model may need several tool calls, and a call that is cut off does not count."""
FORM: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer", "enum": [1, 2, 3, 4]}},
    "required": ["n"],
    "additionalProperties": False,
}
"""Schema with a bounded number: a small model writes digits of an unbounded one until its tokens are used up."""


@dataclass(frozen=True)
class DefaultRow:
    """A row that the default settings can do.

    Args:
        ask: fields of the request that replace the scenario's.
        holds: checks what a client saw.
    """

    ask: Json
    holds: Callable[[Json], bool]


def speaks(output: Json) -> bool:
    return bool(output["text"].strip()) and not output["turns"] and not output["status"]


def calls(turns: int) -> Callable[[Json], bool]:
    """Return a check for exactly `turns` turns that only call `look`."""
    return lambda output: (
        not output["status"]
        and len(output["turns"]) == turns
        and all({*turn} == {"look"} for turn in output["turns"])
    )


def is_in_form(output: Json) -> bool:
    """Return whether the text is JSON that satisfies `FORM`."""
    try:
        value: Any = json.loads(output["text"])
    except ValueError:
        return False
    return {*value} == {"n"} and type(value["n"]) is int


def fails(status: int) -> Callable[[Json], bool]:
    return lambda output: output["status"] == status and not output["turns"]


WRITER: Json = {"model": "writer", "text": "Say hello.", "most": ROOM}
ROWS: dict[str, DefaultRow] = {
    "text": DefaultRow(WRITER | {"model": "podium-mini"}, speaks),
    "stream": DefaultRow(WRITER, speaks),
    "tools": DefaultRow(WRITER | {"must_call": 1, "tools": ["look"]}, calls(1)),
    "tools in a stream": DefaultRow(WRITER | {"must_call": 1}, calls(1)),
    "many turns of tools": DefaultRow(WRITER | {"must_call": 3, "tools": ["look"]}, calls(3)),
    "structured output": DefaultRow(WRITER | {"schema": FORM}, is_in_form),
    "image": DefaultRow(WRITER, fails(400)),
    "no such model": DefaultRow({}, fails(404)),
    "bad value": DefaultRow(WRITER, fails(400)),
    "cancel": DefaultRow(WRITER, speaks),
}
UNABLE: dict[str, str] = {
    "parallel tools": "which tools a model of this size calls, and how many, is chance",
    "two of three steps use tools": "its conductor writes plans of its own, and a step is forced to call nothing",
    KILLED.name: "it has one router, and no store that two could share",
}


def default_rows() -> list[tuple[Scenario, DefaultRow]]:
    """Return the scenarios of the table that the default settings can do, with their rows."""
    rows = [(each, ROWS[each.name]) for each in TABLE if each.name in ROWS]
    return [(Scenario(each.name, {}, asks({})[0] | each.ask | row.ask), row) for each, row in rows]
