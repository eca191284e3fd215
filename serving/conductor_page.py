"""Generator of docs/conductor.md: `python -m serving.conductor_page > docs/conductor.md`.

The page shows the prompts of cluster/api.yaml with every key set. Its plans are in docs/plans.yaml, written
by hand.
"""

import json
import sys
from dataclasses import dataclass
from typing import Any, cast

import yaml

from conductor.model.messages import Image, Message, Part, Text
from conductor.plan.instructions import Layout, instructions, role
from conductor.plan.plan import Plan, Step
from conductor.run.team import Team
from serving.paths import ROOT
from serving.pool import build_pool
from serving.settings.overrides import settings_to_serve
from serving.settings.workers import API_SETTINGS

SETTINGS, PLANS = ROOT / "cluster/api.yaml", ROOT / "docs/plans.yaml"
MAX_STEPS = 5
OWN_WORDS = "the user's own words"
PICTURE = Image("data:image/png;base64,AAAA")
TOKENS: dict[Layout, tuple[int, int]] = {
    "object": (952, 389),
    "thinking object": (982, 410),
    "lines": (936, 384),
    "lists": (915, 396),
}
"""Tokens of the text before the team, for plans of up to five steps and of one, as counted by SmolLM2's
tokenizer. A test checks them.
"""
WHERE: dict[Layout, str] = {
    "object": "an API model that reasons by itself; its server holds it to a JSON schema",
    "thinking object": "an API model that does not, and so is given a field to think in",
    "lines": "a vLLM model under its grammar, and a server that enforces nothing",
    "lists": "`conductor.format: lists`, the paper's",
}
HEAD = """\
# The conductor, prompted

The prompts on this page are exact; its twenty plans were **written by us and not by a model**: a scripted stand-in says them, a test reads and runs
each ([`docs/plans.yaml`](plans.yaml)), and no figure follows from them. Written by `make docs`; do not edit it by hand.

Any strong model can lead a team that it was not trained for: it is told what a plan is and what makes a good one, and reads the cards.

## Who leads

```bash
OPENAI_API_KEY=... make serve CONDUCTOR=gpt-5                             # any worker's name in the settings; likewise make demo
OPENAI_API_KEY=... make serve SETTINGS=cluster/api.yaml CONDUCTOR=gpt     # API models only
OPENAI_API_KEY=... podium serve --conductor gpt-5                         # the same without make
serve run serving.app:build_app settings=cluster/local.yaml conductor=gpt-5   # on a cluster: its nodes have the key
```

* **The worker joins the pool**: its plans may ask it. It needs its key, `optional` or not; who is missing one is told the variable, and nobody takes its place in silence.
* **What was written for the local conductor is dropped**: `prompts` (the shipped adapter's), `format`, `max_plan_tokens`, `subtask_chars` and the rest of `conductor` have
  their defaults again. A `fallback` that is a local model becomes the worker itself. The local conductor's engine is not started, nor its model made, where nothing else uses it.
  A conductor that was no local one leaves the file's `prompts` in force.
* **It thinks little before a plan**: `conductor.effort` is `low` where the worker thinks by itself and the file gives it no `effort`.
* **With `MODEL=`** the local workers get that model and the named worker leads. Where no local engine is left, that is an error.
* A program (`kind: python`, a voter too) cannot be named: it writes no plans. Whoever cannot lead is refused with the names of those who can.
* **A card is a claim**: the cheapest worker whose card fits is asked, and beside each card the conductor is told the model, so that it can know better. The local default's three
  cost nothing and are SmolLM2-135M, whatever their cards promise: with a key, `SETTINGS=cluster/api.yaml` answers better.
* In a settings file the same is `conductor: {worker: gpt-5}`, without the `prompts` of another conductor. A Serve config that names the deployment of a conductor which is left
  out (`vllm-conductor` in `cluster/gpu.serve.yaml`) must drop that entry.
"""


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """A request and a plan for it.

    Args:
        conversation: the last turn is the request.
        plan: names its workers.
    """

    conversation: tuple[Message, ...]
    plan: Plan

    @property
    def request(self) -> str:
        """Text of the request."""
        return self.conversation[-1].text

    @property
    def shows_picture(self) -> bool:
        """Whether the request has a photo."""
        return self.conversation[-1].has_image


def prompted_team() -> Team:
    """Return the team of cluster/api.yaml with every key set. It makes no calls."""
    settings = settings_to_serve(SETTINGS)
    keys = {w.api_key_env: "none" for w in settings.workers if isinstance(w, API_SETTINGS) and w.api_key_env}
    return build_pool(settings, keys, {}).team


def planned_requests() -> list[PlannedRequest]:
    """Return the requests of docs/plans.yaml.

    Raises:
        InvalidPlan: a plan cannot run.
    """
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
    """Return `plan` in the form that the JSON schema enforces."""
    steps = [
        {"worker": pool.index(step.worker), "subtask": step.subtask, "access": list(step.access)}
        for step in plan.steps
    ]
    return json.dumps({"steps": steps}, ensure_ascii=False)


def page() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *_prompts(prompted_team()), *_formats(), *_plans(planned_requests())])


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
    asked = team.prompts.plan(layout, pool, MAX_STEPS, [Message.of("user", "hi")])
    repair = team.prompts.repair(
        asked, "(its plan)", "Step 1 reads step 3; a step can only read earlier ones."
    )
    revise = team.prompts.revise(asked, "(its plan)", "(the team's answer)", layout)
    return [
        "## What it is shown",
        "",
        "All of `cluster/api.yaml`, three keys set, five steps allowed. The system message first; its examples are made for the request: no more steps than it may have, no",
        "worker that is not there, and the small talk's is the cheapest of this pool.",
        "",
        *_block(asked[0].text),
        "Then the user's message, here for `hi`. A conversation of several turns has a mark around each.",
        "",
        *_block(asked[1].text),
        "After a plan that cannot run, once:",
        "",
        *_block(repair[-1].text),
        "In a further round (`rounds`):",
        "",
        *_block(revise[-1].text),
    ]


def _formats() -> list[str]:
    lines = [
        "## Its length, and its other forms",
        "",
        "Tokens of the text before the team, as SmolLM2's tokenizer counts them. It is the same for every question, so a provider's prefix cache and vLLM's serve it.",
        "",
        "| layout | who is asked for it | plans of up to 5 steps | of 1 step |",
        "| --- | --- | --: | --: |",
    ]
    lines += [f"| {layout} | {WHERE[layout]} | {many} | {one} |" for layout, (many, one) in TOKENS.items()]
    lines += ["", "Where one step is allowed, the first part is shorter:", "", *_block(role(1))]
    for layout in TOKENS:
        if layout != "object":
            text = instructions(layout, 6, MAX_STEPS, 1)
            lines += [f"How to write a plan, layout `{layout}`:", "", *_block(text)]
    return lines


def _plans(planned: list[PlannedRequest]) -> list[str]:
    """Return each request with its steps, with names of workers instead of numbers."""
    lines = [
        "## Twenty plans of a scripted stand-in",
        "",
        "We wrote these, no model did; what a real one writes for the same requests was not measured here. Each is read by the parser, allowed by the schema that the conductor's",
        "server is sent, and run by the router over scripted workers in a test.",
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


if __name__ == "__main__":
    sys.stdout.write(page())
