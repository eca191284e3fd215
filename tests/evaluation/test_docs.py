"""The command accepts the commands of docs/evaluation.md and knows the names in them. The vote of
docs/operations/program-workers.md runs.
"""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from evaluation import cli, replay_settings
from evaluation.cards import cli as cards
from evaluation.sources import SOURCES
from evaluation.spec import Spec
from evaluation.strategies import STRATEGIES, expand
from serving.settings.settings import parse
from tests.evaluation.pools import backend
from tests.serving.api.served import scripted, served

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "evaluation.md").read_text()
COMMANDS = [
    line for line in PAGE.splitlines() if re.match(r"podium (eval --(?!help)|recorded-pool |cards )", line)
]


def test_the_page_has_commands():
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_documented_command_is_valid_and_uses_known_names(command: str):
    _, which, *arguments = shlex.split(command)
    programs = {"eval": cli.main, "recorded-pool": replay_settings.main, "cards": cards.main}
    read = programs[which].build().make_context(which, arguments).params
    if which == "eval":
        assert {Spec.parse(name).name for name in (*read["questions"], *read["train"])} <= set(SOURCES)
        assert {Spec.parse(name).name for name in expand(read["strategies"], backend(), learns=True)} <= set(
            STRATEGIES
        )


@pytest.mark.parametrize(
    ("replies", "answer"),
    [
        (["So <answer>4</answer>", "<answer>5</answer>", "<answer> 4 </answer>"], "<answer>4</answer>"),
        (["4", "4", "It is 4."], "(No output contains an <answer> tag.)"),
    ],
)
async def test_the_documented_vote_counts_answers_of_scripted_workers(replies: list[str], answer: str):
    page = (DOCS / "operations" / "program-workers.md").read_text()
    settings = yaml.safe_load(page.partition("```yaml\n")[2].partition("```")[0])
    parse(settings)
    *models, vote = settings["workers"]
    scripts = zip(models, replies, strict=True)
    settings["workers"] = [*(scripted(each["name"], text, card=each["card"]) for each, text in scripts), vote]
    async with served(settings) as api:
        completion = await api.ok({"model": "three-votes"})
    assert completion["choices"][0]["message"]["content"] == answer
