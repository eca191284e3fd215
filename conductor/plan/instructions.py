"""How to write a plan, as the conductor is told: the format that its server enforces, and examples that can
run.

The examples are made for the request: no more steps than it may have, no worker that its pool does not
have. So a conductor that copies one has written a plan.
"""

import json
from collections.abc import Sequence
from typing import Literal

from conductor.plan.formats import Format
from conductor.plan.plan import Step

Layout = Literal["lines", "object", "thinking object", "lists"]
"""How a plan's text is laid out: a JSON object for each step, one around all of them (with or without a
thought before them), or three lists. The first two are both the format `steps`."""

_STARTS = {
    "lines": "Write one JSON object for each step, each on a line of its own, and nothing else.",
    "object": "Write one JSON object that holds the steps in order, and nothing else.",
    "thinking object": "Write one JSON object and nothing else: first, under `thinking`, a sentence or two on what the question needs, "
    "then the steps in order.",
    "lists": "Think first, in a sentence or two. Then write three Python lists of equal length and nothing after them.",
}
_ACCEPTS = {
    "lines": 'write {"accept": true}',
    "object": 'write {"accept": true, "steps": []}',
    "thinking object": 'write "accept": true and no steps',
    "lists": "write three empty lists",
}
_PARTS = "The question has two parts, and then they must be joined."
_EASY = "One model can answer at once."


def layout_of(format: Format, *, is_schema: bool = False, is_thinking: bool = False) -> Layout:
    """The layout of `format`, where the server holds the text to a JSON schema, or does not."""
    if format == "lists":
        return "lists"
    return ("thinking object" if is_thinking else "object") if is_schema else "lines"


def instructions(layout: Layout, n_workers: int, max_steps: int) -> str:
    """How to write a plan in `layout`, with an example of several steps where they may be several."""
    easy = (
        f"For an easy question:\n{_plan_text(layout, [Step('0', 'Answer the question briefly.')], _EASY)}\n"
    )
    several = _example(n_workers, max_steps)
    if not several:
        return f"{_STARTS[layout]} {easy}"
    text = _plan_text(layout, several, _PARTS)
    return f"{_STARTS[layout]} For example, for a question of two parts:\n{text}\n{easy}"


def how_to_accept(layout: Layout) -> str:
    """What to write to keep the answer of the round before."""
    return _ACCEPTS[layout]


def _example(n_workers: int, max_steps: int) -> list[Step]:
    """A plan of several steps; workers are written as their numbers. None where only one step is allowed."""
    other = str(min(1, n_workers - 1))
    if max_steps < 2:
        return []
    if max_steps == 2:
        return [
            Step("0", "Work out what the first part of the question asks for."),
            Step(other, "Answer the whole question with the result of the first part.", (0,)),
        ]
    return [
        Step(other, "Derive the formula the question asks for."),
        Step("0", "List the special cases in which such a formula fails."),
        Step(other, "Answer the question with the formula, corrected for the special cases.", (0, 1)),
    ]


def _plan_text(layout: Layout, steps: Sequence[Step], thought: str) -> str:
    if layout == "lists":
        workers = [int(step.worker) for step in steps]
        subtasks = json.dumps([step.subtask for step in steps])
        reads = json.dumps([["all"] if len(step.access) > 1 else list(step.access) for step in steps])
        return f"{thought}\nmodel_id = {workers}\nsubtasks = {subtasks}\naccess_list = {reads}"
    rows = [
        json.dumps({"worker": int(step.worker), "subtask": step.subtask, "access": list(step.access)})
        for step in steps
    ]
    if layout == "lines":
        return "\n".join(rows)
    before = f'"thinking": {json.dumps(thought)}, ' if layout == "thinking object" else ""
    return f'{{{before}"steps": [{", ".join(rows)}]}}'
