"""A conductor's text to a plan, read while it is still being written.

Two formats. `steps`, the default, is one JSON object a step, in order, so that a step can start at its last
byte::

    {"worker": 0, "subtask": "Work out ...", "access": []}
    {"worker": 2, "subtask": "Check it.", "access": [0]}

Where a server holds the text to a JSON schema they stand in one object, after a thought that is passed
over; a step still starts at its last byte::

    {"thinking": "It has two parts.", "steps": [{"worker": 0, "subtask": "Work out ...", "access": []}]}

`{"accept": true}` alone keeps the answer of the round before. `lists` is the paper's: free reasoning, then
three Python lists (arXiv 2512.04388, section 3.1 and figure 13); three empty ones keep the answer::

    model_id = [0, 2]
    subtasks = ["Work out ...", "Check it."]
    access_list = [[], ["all"]]

A step may say first what it `needs` ("translation into German"): why its worker was chosen. In both, a
worker is its number in the order it was shown in, or its name, `"all"` is short for every
earlier step, and an empty subtask asks the user's own words. In `steps`, `"tools": false` keeps a step from
the client's tools. Nothing is repaired: what cannot run is an `InvalidPlan` with its `Reason`.

Each format's parser is in a file of its own. The grammars that make a model write only what is accepted here
are in `grammars.py`.
"""

from collections.abc import Sequence
from typing import Literal, Protocol

from conductor.plan.lists_format import ListsParser
from conductor.plan.plan import Plan, Step
from conductor.plan.steps_format import StepsParser

Format = Literal["steps", "lists"]


class Parser(Protocol):
    """Reads one plan, fed a piece of text at a time."""

    def feed(self, text: str) -> list[Step]:
        """The steps whose last byte is in `text`, each checked and ready to start.

        Raises:
            InvalidPlan: the plan can no longer become one that runs.
        """
        ...

    def finish(self, *, cut_off: bool = False) -> Plan | None:
        """The whole plan; None where the text accepts the answer of the round before.

        Args:
            cut_off: the writer ran out of tokens.

        Raises:
            InvalidPlan: the text ended too early, or holds no plan.
        """
        ...


def parser(format: Format, workers: Sequence[str], max_steps: int) -> Parser:
    """A new parser of `format` for a pool shown in the order of `workers`."""
    return StepsParser(workers, max_steps) if format == "steps" else ListsParser(workers, max_steps)
