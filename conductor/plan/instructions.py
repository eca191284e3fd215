"""Instructions for the conductor: what a plan is, what makes a good one, its format, and worked examples.

They are written for strong models that were not trained to plan. They are generated for each request: the
examples have no more steps than the request allows and use only workers of its pool. A model that copies an
example therefore writes a plan that can run. The examples follow the few-shot plans of arXiv 2512.04388, but
their content and wording are our own.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal

from conductor.plan.plan import Format, Step

Layout = Literal["lines", "object", "thinking object", "lists"]
"""Layout of a plan's text.

* `lines`: a JSON object for each step (format `steps`).
* `object`, `thinking object`: one object around all steps, without or with a thought before them (format
  `steps`).
* `lists`: three lists."""

_STARTS = {
    "lines": "Write one JSON object for each step, each on its own line, and nothing else.",
    "object": "Write one JSON object that contains the steps in order, and nothing else.",
    "thinking object": "Write one JSON object and nothing else. It starts with `thinking`: one or two sentences on what the request needs. "
    "The steps follow in order.",
    "lists": "Think first, in one or two sentences. Then write three Python lists of equal length and nothing after them.",
}
HOW_TO_ACCEPT = {
    "lines": 'write {"accept": true}',
    "object": 'write {"accept": true, "steps": []}',
    "thinking object": 'write "accept": true and no steps',
    "lists": "write three empty lists",
}
"""Instruction for accepting the answer of the previous round."""

_PLAN = """\
You lead a team of language models. You do not answer the user. You write the plan by which the team answers.

A plan has at most {max_steps} step{s}. Each step has
- a worker: the number of the model that does the step,
- a subtask: what the worker must do. If it is empty, the worker gets the user's own words,
- an access list: the earlier steps, counted from 0, whose outputs the worker reads{only}.
"""
_FLOW = """\
Every worker sees the user's request. Steps that do not read each other run at the same time. The output of the last step is the \
answer. It is the only output that the user sees.
"""
_ONE = """
How to plan:
- Leave the subtask empty: the user's own words are the best task.
"""
_SEVERAL = """
How to plan:
- Most requests need one step. Leave its subtask empty: the user's own words are the best task.
"""
_WORKERS = """\
- A card says what a worker is good at. The line below it gives the worker's model, price, speed and context length, and whether it \
sees images. Most of an answer's cost is its output.
- Choose the cheapest worker whose card fits. A card is a claim: a very small model can only do easy work, whatever its card says. \
Give small talk to the cheapest worker of all. Use an expensive worker for what cheaper ones get wrong, and a fast one if the answer \
must come quickly. A picture needs a worker that sees images. A long text needs a worker with enough context.
"""
_SPLIT = """\
- Use several steps only if a part suits another worker, or needs the result of another part. Doing the same work twice costs twice.
- Let a second worker check work that is error-prone and must be right: long calculations, proofs, code. The checker reads the \
answer and writes out the corrected answer.
- If there are several steps, each subtask names its subject in the request's own words, with names, numbers and languages. Never \
write "do the second part".
- The last step reads every part that it needs and answers the whole request in the user's language.
"""
_EXAMPLES = "Examples (their workers are arbitrary; choose workers by their cards):"


@dataclass(frozen=True, slots=True)
class _Example:
    """Example request, the reason for its plan, and the plan. Workers are written as their numbers."""

    request: str
    reason: str
    steps: tuple[Step, ...]


@cache
def layout_of(format: Format, *, is_schema: bool = False, is_thinking: bool = False) -> Layout:
    """Return the layout of a plan's text. A schema may have a field for a thought before the steps."""
    if format == "lists":
        return "lists"
    return ("thinking object" if is_thinking else "object") if is_schema else "lines"


@cache
def role(max_steps: int) -> str:
    """Describe to the conductor its role, and what makes a good plan with at most `max_steps` steps."""
    is_one = max_steps == 1
    plan = _PLAN.format(max_steps=max_steps, s="" if is_one else "s", only="; here none" if is_one else "")
    return f"{plan}{_ONE}{_WORKERS}" if is_one else f"{plan}{_FLOW}{_SEVERAL}{_WORKERS}{_SPLIT}"


@lru_cache(maxsize=256)  # used for every plan, and there are few different teams
def instructions(layout: Layout, n_workers: int, max_steps: int, cheapest: int | None = None) -> str:
    """Return instructions and examples for a plan in `layout`. `cheapest` is a worker's number, if known."""
    examples = [
        _render_example(layout, example)
        for example in _examples(n_workers, cheapest)
        if len(example.steps) <= max_steps
    ]
    return f"{_STARTS[layout]} {_EXAMPLES}\n\n" + "\n".join(examples)


def _examples(n_workers: int, cheapest: int | None) -> list[_Example]:
    """Return examples: small talk, a specialist, two steps in sequence, two in parallel, and a check."""
    first = cheapest or 0
    a, b, c = (str((first + more) % n_workers) for more in range(3))
    choice = "the user's own words" if cheapest is None else f"worker {a}, the cheapest of your team"
    return [
        _Example("hi, how are you?", f"Small talk. One step, {choice}.", (Step(a, ""),)),
        _Example(
            "Why does my sourdough not rise? I feed it once a week.",
            "One worker that knows about baking can answer this well.",
            (Step(b, ""),),
        ),
        _Example(
            "My script prints every line twice: ... Fix it and write a note on the bug for our customers.",
            "The note needs what the coder finds, so a writer reads it.",
            (
                Step(b, "Find why the script prints every line twice, and fix it."),
                Step(
                    c,
                    "Give the fixed script, then a note for our customers on why every line came twice.",
                    (0,),
                ),
            ),
        ),
        _Example(
            "Put the clause below into Japanese, work out 3.2 % of 41,750 euros, and write Ms Sato an e-mail with both.",
            "A translation and a sum that do not need each other, then the e-mail that needs both.",
            (
                Step(b, "Translate the clause into Japanese."),
                Step(c, "Work out 3.2 % of 41,750 euros."),
                Step(
                    a,
                    "Write the e-mail to Ms Sato with the Japanese clause and 3.2 % of 41,750 euros.",
                    (0, 1),
                ),
            ),
        ),
        _Example(
            "How many ways are there to seat 7 guests at a round table if Ann and Bo must not be neighbours?",
            "Counting easily goes wrong, so another worker checks it.",
            (
                Step(c, "Count the ways to seat 7 guests at a round table with Ann and Bo apart."),
                Step(
                    b,
                    "Check the ways to seat 7 guests with Ann and Bo apart, and write out the right count.",
                    (0,),
                ),
            ),
        ),
    ]


def _render_example(layout: Layout, example: _Example) -> str:
    """Return the request and its plan. If plans have no thought, the reason is put next to the request."""
    has_thought = layout in ("thinking object", "lists")
    reason = "" if has_thought else f" ({example.reason})"
    return f"Request: {example.request}{reason}\n{_plan_text(layout, example.steps, example.reason)}\n"


def _plan_text(layout: Layout, steps: Sequence[Step], thought: str) -> str:
    if layout == "lists":
        workers = [int(step.worker) for step in steps]
        subtasks = json.dumps([step.subtask for step in steps])
        reads = [list(step.access) for step in steps]
        return f"{thought}\nmodel_id = {workers}\nsubtasks = {subtasks}\naccess_list = {reads}"
    rows = [
        json.dumps({"worker": int(step.worker), "subtask": step.subtask, "access": list(step.access)})
        for step in steps
    ]
    if layout == "lines":
        return "\n".join(rows)
    before = f'"thinking": {json.dumps(thought)}, ' if layout == "thinking object" else ""
    return f'{{{before}"steps": [{", ".join(rows)}]}}'
