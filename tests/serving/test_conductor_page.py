"""docs/conductor.md: its prompts match the requests that are sent, and its twenty plans parse, pass the schema and
run.
"""

import json
import re
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from tokenizers import Tokenizer

from conductor.plan.grammars import grammar
from conductor.plan.instructions import instructions, role
from conductor.plan.plan import Format
from conductor.plan.prompts import ANSWER
from conductor.run.plan_requests import parser
from podium.docs.conductor_page import (
    MAX_STEPS,
    SETTINGS,
    TOKENS,
    generate,
    plan_text,
    planned_requests,
    prompted_team,
)
from serving.settings.settings import load
from tests.conductor.team import render_plan
from tests.conftest import ROOT
from tests.lazy import lazy
from tests.serving.api.served import Json, scripted, served
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, serving

xgrammar = lazy("xgrammar")
accepts = lazy("xgrammar.testing:_is_grammar_accept_string")

PLANNED = planned_requests()
TEAM = prompted_team()
POOL = list(TEAM.pool)


def lead(url: str) -> Json:
    """Return settings of a conductor on OpenAI's wire, as on the page."""
    fast = next(w for w in load(SETTINGS).workers if w.name == "gpt-fast")
    own = {"name": "lead", "in_pool": False, "fallbacks": [], "base_url": f"{url}/v1"}
    return fast.model_dump(mode="json", exclude_unset=True) | own


def scripted_team() -> list[Json]:
    """Return scripted workers with the names, cards, prices and `sees_images` of the page."""
    fields = ("card", "price", "sees_images")
    return [
        scripted(w.name, f"{w.name} answers.", **w.model_dump(mode="json", include=set(fields)))
        for w in load(SETTINGS).workers
    ]


def as_json(messages: Any) -> list[Json]:
    return [
        {
            "role": message.role,
            "content": [
                {"type": "text", "text": part.text}
                if hasattr(part, "text")
                else {"type": "image_url", "image_url": {"url": part.url}}
                for part in message.parts
            ],
        }
        for message in messages
    ]


async def test_all_twenty_plans_match_the_schema_and_run() -> None:
    plans = {each.request: each.plan for each in PLANNED}
    assert len(plans) == 20
    schemas: list[Json] = []

    def respond(request: Request) -> Answer:
        schemas.append(request.body["response_format"]["json_schema"]["schema"])
        prompt = json.dumps(request.body["messages"][-1]["content"], ensure_ascii=False)
        text = plan_text(plans[max((words for words in plans if words in prompt), key=len)], POOL)
        Draft202012Validator(schemas[-1]).validate(json.loads(text))
        return Answer(text=text)

    async with serving(OpenAIWire()) as upstream:
        upstream.respond = respond
        settings = {
            "conductor": {"worker": "lead"},
            "models": {"mini": {}},
            "workers": [lead(upstream.url), *scripted_team()],
        }
        async with served(settings, {"OPENAI_API_KEY": "sk-1"}) as running:
            for each in PLANNED:
                answer = await running.ok({"messages": as_json(each.conversation)})
                record = await running.record((await running.newest())["id"])
                assert [(plan["source"], plan["rejected"], plan["error"]) for plan in record["plans"]] == [
                    ("conductor", None, None)
                ]
                assert [(s["worker"], s["subtask"], tuple(s["access"])) for s in record["steps"]] == [
                    (s.worker, s.subtask, s.access) for s in each.plan.steps
                ]
                assert {s["status"] for s in record["steps"]} == {"done"}
                assert answer["choices"][0]["message"]["content"] == f"{each.plan.steps[-1].worker} answers."
                for step in record["steps"]:
                    step_prompt = step["prompt"][-1]["content"]
                    assert each.request in str(step_prompt)
                    assert step["subtask"] in str(step_prompt)
                    assert ANSWER not in str(step_prompt), (
                        "an empty subtask adds nothing to the user's own words"
                    )
            await running.service.pool.aclose()
    assert len(schemas) == 20, "each was planned once"


@pytest.mark.parametrize("format", ["steps", "lists"])
def test_each_plan_matches_the_grammar_and_can_be_parsed(format: Format) -> None:
    compiled_grammar = xgrammar.Grammar.from_ebnf(grammar(format, len(POOL), MAX_STEPS).ebnf)
    for each in PLANNED:
        text = render_plan(each.plan, POOL, format)
        assert accepts(compiled_grammar, text), text
        reading = parser(format, POOL, MAX_STEPS)
        reading.feed(text)
        assert reading.finish() == each.plan


def test_the_plans_follow_the_rules_of_the_prompt() -> None:
    singles = [each for each in PLANNED if len(each.plan.steps) == 1]
    assert 2 * len(singles) > len(PLANNED), "most requests need one step"
    assert not any(each.plan.steps[0].subtask for each in singles)
    assert PLANNED[0].request == "hi"
    prices = {w.name: w.price.input_usd_per_mtok for w in load(SETTINGS).workers if w.price}
    assert prices[PLANNED[0].plan.steps[0].worker] == min(prices.values())
    assert all(each.plan.reachable == set(range(len(each.plan.steps))) for each in PLANNED)
    for each in PLANNED:
        words = set(re.findall(r"\w+", each.request.casefold()))
        for step in each.plan.steps if len(each.plan.steps) > 1 else ():
            assert len(words & set(re.findall(r"\w+", step.subtask.casefold()))) >= 5, step
        seers = [TEAM.pool[step.worker].sees_images for step in each.plan.steps]
        assert all(seers) or not each.shows_picture


async def test_the_page_shows_the_conductors_prompt() -> None:
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda request: Answer(text=plan_text(PLANNED[0].plan, POOL))
        settings = {
            "conductor": {"worker": "lead"},
            "models": {"mini": {}},
            "workers": [lead(upstream.url), *scripted_team()],
        }
        async with served(settings, {"OPENAI_API_KEY": "sk-1"}) as running:
            await running.ok({"messages": [{"role": "user", "content": "hi"}]})
            await running.service.pool.aclose()
    page = generate()
    for worker in load(SETTINGS).workers:
        assert f"({worker.model}; " in page
        page = page.replace(f"({worker.model}; ", "(")  # a scripted worker has no model
    for message in upstream.requests[0].body["messages"]:
        assert f"```text\n{message['content'].rstrip()}\n```" in page


def test_the_page_states_that_its_plans_were_written_by_people() -> None:
    text = (ROOT / "docs/conductor.md").read_text("utf-8")
    introduction = text.partition("\n## ")[0]
    assert "We wrote these plans; no model did" in introduction
    section = text.partition("## Twenty plans")[2]
    assert "We wrote these plans; no model did" in section.splitlines()[2]
    assert "WRITTEN BY US, NOT BY A MODEL" in (ROOT / "docs/plans.yaml").read_text("utf-8").splitlines()[0]


def test_the_documented_token_counts_are_correct() -> None:
    tokenizer = Tokenizer.from_file(str(ROOT / "models/smollm2-135m/tokenizer.json"))
    counted = {
        layout: tuple(
            len(tokenizer.encode(f"{role(n)}\n{instructions(layout, 6, n, 1)}").ids) for n in (MAX_STEPS, 1)
        )
        for layout in TOKENS
    }
    assert counted == TOKENS
