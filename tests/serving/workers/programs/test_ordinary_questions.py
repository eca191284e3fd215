"""Ordinary questions of six kinds. No program may answer one wrong."""

import json
import re
import unicodedata
from pathlib import Path

import pytest

from serving.workers.programs.guide import UNABLE, Guide
from tests.conftest import ROOT
from tests.serving.workers.programs.phrasings import say
from tests.serving.workers.programs.test_changed_phrasings import PROGRAMS

LINES = (Path(__file__).with_name("ordinary.txt")).read_text(encoding="utf-8").splitlines()
MOST_REFUSED = 30


def plain(text: str) -> str:
    text = re.sub(r"(?<=\d),(?=\d{3})", "", text.casefold())
    return "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))


@pytest.mark.timeout(120)
def test_ordinary_questions_are_answered_correctly_or_rejected():
    wrong: dict[str, list[str]] = {}
    n_refused = 0
    for line in LINES:
        if line.startswith("#"):
            continue
        question, *answers = line.split(" | ")
        replies = [reply for each in PROGRAMS if not (reply := say(each, question)).startswith("refused: ")]
        n_refused += not replies
        if not all(any(plain(answer) in plain(reply) for answer in answers) for reply in replies):
            wrong[question] = replies
    assert (wrong, n_refused <= MOST_REFUSED) == ({}, True)


def test_the_consoles_examples_are_answered():
    page = (ROOT / "console/src/pages/ask.tsx").read_text(encoding="utf-8")
    (examples,) = re.findall(r"const EXAMPLES = (\[.*?\]);", page, re.DOTALL)
    programs = [*PROGRAMS, Guide("guide")]
    replies = {text: [say(each, text) for each in programs] for text in json.loads(examples)}
    assert len(replies) == 4
    no_answer = ("refused: ", UNABLE)
    assert [
        text for text, answers in replies.items() if all(each.startswith(no_answer) for each in answers)
    ] == []
