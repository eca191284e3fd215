"""A plan text gives the same record through the HTTP API and through the reward."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation.questions import Question
from evaluation.synthetic.questions import questions
from serving.api.record_json import workflow
from serving.settings.settings import parse
from tests.serving.api.served import Json, plan, scripted, served, step
from training.caching_worker import CallCache
from training.plan_runner import PlanRunner, training_pool
from training.team_question import TeamQuestion

POOL = yaml.safe_load(Path("training/pools/skills.yaml").read_text(encoding="utf-8"))
ORDER = ["roman", "generalist", "adder", "sorter", "speller"]
QUESTION = next(q.text for q in questions(0, 200, 1.0) if q.family == "arithmetic>numerals")
ADD, ROMAN = step(2, "Do the arithmetic part."), step(0, "Do the numerals part.", [0])
LISTS = 'One adds, one writes.\nmodel_id = [2, 0]\nsubtasks = ["Do the arithmetic part.", "Write it."]\naccess_list = [[], ["all"]]'


def settings(*texts: str, format: str = "steps") -> Json:
    """Return the shipped pool, with a conductor that writes `texts`."""
    price = {"input_usd_per_mtok": 3, "output_usd_per_mtok": 9}
    workers = [each for each in POOL["workers"] if each["name"] != "conductor"]
    return POOL | {
        "workers": [scripted("conductor", *texts, in_pool=False, price=price), *workers],
        "conductor": {"worker": "conductor", "format": format, "constrained": False},
    }


def timeless(value: Any) -> Any:
    """Return `value` without ids and times, which differ between runs."""
    if isinstance(value, dict):
        return {
            key: timeless(each)
            for key, each in value.items()
            if key not in ("id", "trace_id", "span_id", "conversation", "created") and not key.endswith("_s")
        }
    return [timeless(each) for each in value] if isinstance(value, list) else value


def team_question() -> TeamQuestion:
    return TeamQuestion(Question("q", QUESTION, "", "exact", "test", "none"), tuple(ORDER))


async def through_http(data: Json, model: str) -> Json:
    async with served(data) as server:
        body = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
        answer = await server.ok(body, workers=ORDER)
        record = await server.record(answer["podium"]["workflow_id"])
        assert record.pop("feedback") == []  # Feedback is not part of the run.
        return record


async def through_reward(data: Json, model: str, texts: list[str], cache: CallCache | None) -> Json:
    runner = PlanRunner(training_pool(parse(data), {}), model, cache)
    return workflow(await runner.run(team_question(), texts))


@pytest.mark.parametrize("cache", [None, CallCache()])
@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("steps", plan(step(1, "Answer."))),
        ("steps", plan(ADD, ROMAN)),
        ("steps", plan(ADD, step(1, "Do the arithmetic part."), step(0, "Do the numerals part.", [0, 1]))),
        ("steps", plan(step(4, "Spell."), ADD, step(0, "Go on.", [1]))),  # no step needs the first one
        ("lists", LISTS),
    ],
)
async def test_a_plan_text_gives_equal_records_in_server_and_reward(
    format: str, text: str, cache: CallCache | None
):
    data = settings(text, format=format)
    served_record = await through_http(data, "podium-skills")
    for _ in range(2):  # The second run comes from memory if there is one.
        rewarded = await through_reward(data, "podium-skills", [text], cache)
        assert timeless(rewarded) == timeless(served_record)
    assert served_record["status"] == "finished"
    assert served_record["cost_usd"] > 0


@pytest.mark.parametrize("second", [plan(ADD, ROMAN), '{"accept": true}'])
async def test_a_second_round_gives_equal_records_in_server_and_reward(second: str):
    texts = [plan(step(1, "Answer.")), second]
    data = settings(*texts)
    served_record = await through_http(data, "podium-skills-revised")
    rewarded = await through_reward(data, "podium-skills-revised", texts, None)
    assert timeless(rewarded) == timeless(served_record)
    assert served_record["rounds"] == 2


async def test_training_uses_the_prompt_of_the_server():
    text = plan(ADD, ROMAN)
    record = await through_http(settings(text), "podium-skills")
    runner = PlanRunner(training_pool(parse(settings(text)), {}), "podium-skills")
    assert record["plans"][0]["prompt"] == runner.prompt(team_question())
