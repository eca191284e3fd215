"""The commands of docs/evaluation.md are read by the command itself, and name what there is."""

import re
import shlex
from pathlib import Path

import pytest

from evaluation import cli, replay_settings
from evaluation.cards import cli as cards
from evaluation.sources import SOURCES
from evaluation.spec import Spec
from evaluation.strategies import STRATEGIES, expand
from tests.evaluation.pools import backend

PAGE = (Path(__file__).parents[2] / "docs/evaluation.md").read_text()
COMMANDS = [
    line for line in PAGE.splitlines() if re.match(r"podium (eval --(?!help)|recorded-pool |cards )", line)
]


def test_the_page_has_commands():
    assert len(COMMANDS) == 6


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_read_and_names_what_there_is(command: str):
    _, which, *arguments = shlex.split(command)
    parsers = {"eval": cli.parser, "recorded-pool": replay_settings.parser, "cards": cards.parser}
    read = parsers[which]().parse_args(arguments)
    if which == "eval":
        assert {Spec.parse(name).name for name in read.questions + read.train} <= set(SOURCES)
        assert {Spec.parse(name).name for name in expand(read.strategies, backend(), learns=True)} <= set(
            STRATEGIES
        )


def test_every_source_and_strategy_is_on_the_page():
    assert [name for name in (*SOURCES, *STRATEGIES) if f"`{name}" not in PAGE] == []
