"""Whole kinds of everyday questions in many phrasings, including lookalikes that the programs must refuse."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from serving.workers.programs.dates import Calendar
from tests.serving.workers.programs.phrasings import say
from tests.serving.workers.programs.test_changed_phrasings import PROGRAMS

TEXT = Path(__file__).with_name("kinds.txt").read_text(encoding="utf-8")
KINDS = {kind.partition("\n")[0]: kind.splitlines()[1:] for kind in TEXT.split("# ")[2:]}
WINTER = Calendar("calendar", clock=lambda: datetime(2026, 1, 15, 12, tzinfo=UTC))
WORKERS = [WINTER if isinstance(each, Calendar) else each for each in PROGRAMS]


@pytest.mark.parametrize("kind", KINDS)
def test_every_phrasing_of_a_kind_is_answered_or_rejected_as_expected(kind: str):
    wrong: dict[str, list[str]] = {}
    for line in KINDS[kind]:
        question, _, answer = line.partition(" => ")
        replies = [reply for each in WORKERS if not (reply := say(each, question)).startswith("refused: ")]
        expected = answer.replace("||", "|")
        is_right = (
            not replies if answer == "refused" else replies and all(expected in each for each in replies)
        )
        if not is_right:
            wrong[question] = replies
    assert wrong == {}


def test_each_kind_has_at_least_forty_phrasings():
    assert {kind: len(lines) >= 40 for kind, lines in KINDS.items()} == dict.fromkeys(KINDS, True)
