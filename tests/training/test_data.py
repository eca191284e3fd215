"""What is asked of whom: the mix of question sets, and teams."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from serving.settings import SettingsError
from tests.training.tiny_models import config
from training.config import Config
from training.data import drawn, held_out, training_questions

POOL = ["adder", "speller", "a", "b"]


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A recorded pool of forty questions, half of them long."""
    rows = [
        {"dataset": "sums", "question": f"{number} + {number}?" + " Think." * 50 * (number % 2), "expected": str(2 * number),
         "models": {"lab_a": {"s": 1.0, "a": str(2 * number)}}}
        for number in range(40)
    ]  # fmt: skip
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def mixed(path: Path, recorded: Path, **also: Any) -> Config:
    """Two thirds synthetic, a third recorded, each with its team."""
    names = {
        "train": f"recorded:{recorded}?part=train",
        "held_out": f"recorded:{recorded}?part=test",
        "share": 1 / 3,
    }
    made = config(path, questions={"also": [names | also]}, held_out=30)
    teams = {"skills": ("adder", "speller"), "recorded": ("a", "b")}
    return made.model_copy(update={"pool": made.pool.model_copy(update={"teams": teams})})


def test_further_questions_are_mixed_in_by_their_share_the_same_every_time(tmp_path: Path, recorded: Path):
    made = mixed(tmp_path, recorded)
    found = training_questions(made.questions, 90)
    assert Counter(question.source for question in found) == {"skills": 60, "recorded": 30}
    assert len({question.source for question in found[:15]}) == 2
    assert [question.id for question in found] == [q.id for q in training_questions(made.questions, 90)]


def test_a_question_is_asked_of_its_own_team(tmp_path: Path, recorded: Path):
    made = mixed(tmp_path, recorded)
    asked = drawn(made, POOL, training_questions(made.questions, 30), "x") + held_out(made, POOL)
    teams = {(each.question.source, tuple(sorted(each.workers))) for each in asked}
    assert teams == {("skills", ("adder", "speller")), ("recorded", ("a", "b"))}


def test_what_is_held_out_was_not_taught_and_nothing_is_too_long(tmp_path: Path, recorded: Path):
    made = mixed(tmp_path, recorded, max_chars=200)
    taught = {question.text for question in training_questions(made.questions, 120)}
    held = [each.question for each in held_out(made, POOL)]
    assert not taught & {question.text for question in held}
    assert Counter(question.source for question in held) == {"skills": 20, "recorded": 10}
    assert all("Think" not in text for text in taught)


def test_it_is_said_what_is_wrong_with_a_mix(tmp_path: Path, recorded: Path):
    same = mixed(tmp_path, recorded, held_out=f"recorded:{recorded}?part=all")
    with pytest.raises(SettingsError, match=r"is in train and in held_out"):
        held_out(same, POOL)
    with pytest.raises(SettingsError, match=r"no question of at most 3 characters"):
        training_questions(mixed(tmp_path, recorded, max_chars=3).questions, 30)
    with pytest.raises(SettingsError, match=r"cannot be read"):
        training_questions(mixed(tmp_path, tmp_path / "nowhere").questions, 30)
    with pytest.raises(
        SettingsError, match=r"pool\.teams\.recorded has 'b'; the pool has: adder, speller, a"
    ):
        held_out(mixed(tmp_path, recorded), POOL[:3])
    with pytest.raises(SettingsError, match=r"must be less than 1 together"):
        config(tmp_path, questions={"also": [{"train": "a", "held_out": "b", "share": 0.6}] * 2})
