"""Generate the prompts and plans in docs/conductor.md.

The prompts are those for the workers of cluster/api.yaml if all API keys are set. The plans are read from
docs/plans.yaml and were written by hand.
"""

import json
from dataclasses import dataclass
from typing import Any, cast

import yaml

from conductor.model.messages import Image, Message, Part, Text
from conductor.plan.instructions import Layout, instructions, role
from conductor.plan.plan import Plan, Step
from conductor.run.team import Team
from serving import ROOT
from serving.pool import build_pool
from serving.settings.overrides import settings_to_serve
from serving.settings.workers import API_SETTINGS

SETTINGS, PLANS = ROOT / "cluster/api.yaml", ROOT / "docs/plans.yaml"
MAX_STEPS = 5
OWN_WORDS = "the user's own words"
PICTURE = Image("data:image/png;base64,AAAA")
TOKENS: dict[Layout, tuple[int, int]] = {
    "object": (959, 388),
    "thinking object": (989, 409),
    "lines": (941, 381),
    "lists": (922, 395),
}
"""Number of tokens in the prompt before the list of workers, for plans of up to five steps and of one step, as
counted by SmolLM2's tokenizer. A test checks these numbers.
"""
WHERE: dict[Layout, str] = {
    "object": "an API model that reasons on its own, and whose server enforces a JSON schema",
    "thinking object": "an API model that does not reason on its own. The JSON schema has a field for its thoughts.",
    "lines": "a vLLM model, whose output follows a grammar, or a model whose server enforces no format",
    "lists": "any model with `conductor.format: lists`, the format of the RL Conductor paper",
}


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A conversation whose last turn is the request, and a plan with workers by name."""

    conversation: tuple[Message, ...]
    plan: Plan

    @property
    def request(self) -> str:
        return self.conversation[-1].text

    @property
    def shows_picture(self) -> bool:
        return self.conversation[-1].has_image


def prompted_team() -> Team:
    """Build the team of cluster/api.yaml as if all API keys were set. No model is called."""
    settings = settings_to_serve(SETTINGS)
    keys = {w.api_key_env: "none" for w in settings.workers if isinstance(w, API_SETTINGS) and w.api_key_env}
    return build_pool(settings, keys, {}).team


def planned_requests() -> list[PlannedRequest]:
    """Return the requests of docs/plans.yaml. Raise InvalidPlan if a plan cannot run."""
    pool = list(prompted_team().pool)
    rows = cast(list[dict[str, Any]], yaml.safe_load(PLANS.read_text(encoding="utf-8")))
    return [
        PlannedRequest(
            _conversation(row),
            Plan.of(
                [Step(worker, task, tuple(reads)) for worker, task, reads in row["steps"]], pool, MAX_STEPS
            ),
        )
        for row in rows
    ]


def plan_text(plan: Plan, pool: list[str]) -> str:
    """Return `plan` as JSON in the form that the schema for conductors enforces."""
    steps = [
        {"worker": pool.index(step.worker), "subtask": step.subtask, "access": list(step.access)}
        for step in plan.steps
    ]
    return json.dumps({"steps": steps}, ensure_ascii=False)


def generate() -> str:
    """Generate the sections with the prompts, their lengths and the plans, as Markdown."""
    return "\n".join([*_prompts(prompted_team()), *_formats(), *_plans(planned_requests())])


def _conversation(row: dict[str, Any]) -> tuple[Message, ...]:
    before = [
        Message.of("user" if number % 2 == 0 else "assistant", text)
        for number, text in enumerate(row.get("before", ()))
    ]
    parts: tuple[Part, ...] = (Text(row["request"]), *([PICTURE] if row.get("picture") else []))
    return (*before, Message("user", parts))


def _prompts(team: Team) -> list[str]:
    assert team.conductor is not None, "cluster/api.yaml has a conductor"
    layout, pool = team.conductor.layout, list(team.pool.values())
    prompt = team.prompts.plan(layout, pool, MAX_STEPS, [Message.of("user", "hi")])
    repair = team.prompts.repair(
        prompt, "(its plan)", "Step 1 reads step 3; a step can only read earlier ones."
    )
    revise = team.prompts.revise(prompt, "(its plan)", "(the team's answer)", layout)
    return [
        "## Its prompts",
        "",
        "A conductor gets the following prompts with `cluster/api.yaml`, if the API keys of all three providers are set and a plan may have five steps. The first one is the system message.",
        "Podium adapts the example plans in this message to each request. The examples never have more steps than the request allows, and never use workers that the pool lacks. The small-talk example uses the cheapest worker.",
        "",
        *_block(prompt[0].text),
        "The user message contains the request. In a conversation of several turns, marks show where each turn begins and ends. For the request `hi`, this is the user message:",
        "",
        *_block(prompt[1].text),
        "If a plan cannot run, Podium asks the conductor once for another plan, with this message:",
        "",
        *_block(repair[-1].text),
        "If the settings allow several `rounds`, Podium sends the team's answer to the conductor, which accepts the answer or writes a new plan:",
        "",
        *_block(revise[-1].text),
    ]


def _formats() -> list[str]:
    lines = [
        "## Length and other layouts",
        "",
        "The layout of the prompt depends on the conductor's model. For each layout, this table shows the number of tokens before the list of workers, as counted by SmolLM2's tokenizer. This part of the prompt is the same for every question, so providers and vLLM can read it from their prefix caches.",
        "",
        "| layout | used for | tokens, for plans of up to 5 steps | tokens, for plans of 1 step |",
        "| --- | --- | --: | --: |",
    ]
    lines += [f"| {layout} | {WHERE[layout]} | {many} | {one} |" for layout, (many, one) in TOKENS.items()]
    lines += [
        "",
        "If a plan may have only one step, the first part of the prompt is shorter:",
        "",
        *_block(role(1)),
    ]
    for layout in TOKENS:
        if layout != "object":
            text = instructions(layout, 6, MAX_STEPS, 1)
            lines += [f"In the layout `{layout}`, this text explains how to write a plan:", "", *_block(text)]
    return lines


def _plans(planned: list[PlannedRequest]) -> list[str]:
    """Return Markdown lines for each request and its steps. Workers are shown by name instead of number."""
    lines = [
        "## Twenty plans of a scripted stand-in",
        "",
        "We wrote these plans; no model did. A test parses each plan, and validates it against the JSON schema that Podium sends to the",
        "conductor's server. It then runs the plan in the router with scripted workers. The steps are numbered from 0.",
        "",
    ]
    for number, each in enumerate(planned, 1):
        n_before = len(each.conversation) - 1
        earlier = f" (after {n_before} turns)" if n_before else ""
        photo = " (with a photo)" if each.shows_picture else ""
        lines.append(f"{number}. *{each.request}*{earlier}{photo}")
        for index, step in enumerate(each.plan.steps):
            reads = f", reads {' and '.join(map(str, step.access))}" if step.access else ""
            lines.append(f"    * {index}: **{step.worker}**{reads}: {step.subtask or OWN_WORDS}")
    return [*lines, ""]


def _block(text: str) -> list[str]:
    return ["```text", *text.rstrip().splitlines(), "```", ""]
