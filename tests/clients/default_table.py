"""What the table's rows become for the running default, whose model has 135 million parameters: what is asked in their
place, and what holds of any answer. A row that it cannot do says why. It knows no SDK and no server.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.clients.table import KILLED, TABLE, Scenario, asks
from tests.serving.api.served import Json

ROOM = 600
"""Tokens an answer may take: enough for several calls of a tool by a model that wanders. Fewer cut a call in the middle,
and a call that was cut is none.
"""
FORM: Json = {
    "type": "object",
    "properties": {"n": {"type": "integer", "enum": [1, 2, 3, 4]}},
    "required": ["n"],
    "additionalProperties": False,
}
"""Bounded: a small model writes the digits of an unbounded number until its tokens are used up."""


@dataclass(frozen=True)
class DefaultRow:
    """A row that the default does.

    Args:
        ask: besides the scenario's own.
        holds: of what a client saw.
    """

    ask: Json
    holds: Callable[[Json], bool]


def speaks(seen: Json) -> bool:
    return bool(seen["text"].strip()) and not seen["turns"] and not seen["status"]


def calls(turns: int) -> Callable[[Json], bool]:
    """Whether there were so many turns of calls, each of `look` alone, however often."""
    return lambda seen: (
        not seen["status"]
        and len(seen["turns"]) == turns
        and all({*turn} == {"look"} for turn in seen["turns"])
    )


def is_in_form(seen: Json) -> bool:
    """Whether the text is what the schema says; the model's number is any."""
    try:
        value: Any = json.loads(seen["text"])
    except ValueError:
        return False
    return {*value} == {"n"} and type(value["n"]) is int


def fails(status: int) -> Callable[[Json], bool]:
    return lambda seen: seen["status"] == status and not seen["turns"]


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
    """The scenarios of the table that the default does."""
    rows = [(each, ROWS[each.name]) for each in TABLE if each.name in ROWS]
    return [(Scenario(each.name, {}, asks({})[0] | each.ask | row.ask), row) for each, row in rows]
