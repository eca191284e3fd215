"""Mix of question sets, and the teams of the questions."""

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evaluation.graders import GRADERS, grade
from evaluation.questions import Question
from serving.settings.settings import SettingsError
from tests.training.tiny_models import config
from training.config import Config, QuestionsConfig
from training.data import assign_teams, eval_questions, training_questions, worth_questions
from training.jsonl_questions import FACTS

POOL = ["adder", "speller", "a", "b"]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Return a recorded pool of forty questions, half of them long."""
    rows = [
        {
            "dataset": "sums",
            "question": f"{number} + {number}?" + " Think." * 50 * (number % 2),
            "expected": str(2 * number),
            "models": {"lab_a": {"s": 1.0, "a": str(2 * number)}},
        }
        for number in range(40)
    ]
    path = tmp_path / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return path


def mix(path: Path, recording: Path, **also: Any) -> Config:
    """Return a config with two thirds synthetic and one third recorded questions, each with its team."""
    names = {
        "train": f"recorded:{recording}?part=train",
        "held_out": f"recorded:{recording}?part=test",
        "share": 1 / 3,
    }
    run_config = config(path, questions={"also": [names | also]}, held_out=30)
    teams = {"skills": ("adder", "speller"), "recorded": ("a", "b")}
    return run_config.model_copy(update={"pool": run_config.pool.model_copy(update={"teams": teams})})


def test_additional_questions_are_mixed_in_by_share_deterministically(tmp_path: Path, recording: Path):
    run_config = mix(tmp_path, recording)
    questions = training_questions(run_config.questions, 90)
    assert Counter(question.source for question in questions) == {"skills": 60, "recorded": 30}
    assert len({question.source for question in questions[:15]}) == 2
    assert [question.id for question in questions] == [
        q.id for q in training_questions(run_config.questions, 90)
    ]


def test_workers_are_judged_on_long_questions_too(tmp_path: Path, recording: Path):
    run_config = mix(tmp_path, recording, max_chars=200)
    drawn = assign_teams(run_config, POOL, training_questions(run_config.questions, 90), "warm start")
    judged = worth_questions(run_config, POOL, drawn)
    assert {each.question.id for each in judged["skills"]} == {
        each.question.id for each in drawn if each.question.source == "skills"
    }
    assert {each.workers for each in judged["recorded"]} == {("a", "b")}
    lengths = [len(each.question.text) for each in judged["recorded"]]
    assert min(lengths) < 200 < max(lengths)
    assert len({each.question.id for each in judged["recorded"]}) == len(lengths)


def test_a_question_goes_to_its_own_team(tmp_path: Path, recording: Path):
    run_config = mix(tmp_path, recording)
    questions = assign_teams(
        run_config, POOL, training_questions(run_config.questions, 30), "x"
    ) + eval_questions(run_config, POOL)
    teams = {(each.question.source, tuple(sorted(each.workers))) for each in questions}
    assert teams == {("skills", ("adder", "speller")), ("recorded", ("a", "b"))}


def test_consecutive_questions_share_a_team_with_measured_cards(tmp_path: Path, recording: Path):
    run_config = mix(tmp_path, recording)
    settings = Path(run_config.pool.settings).read_text("utf-8")
    pool = tmp_path / "pool.yaml"
    pool.write_text(settings.replace("workers:\n", "workers:\n  - {name: a, kind: scripted, replies: [x]}\n"))
    cards = {"recorded": f"recorded:{recording}?part=train"}
    run_config = run_config.model_copy(
        update={
            "pool": run_config.pool.model_copy(update={"cards": cards, "settings": str(pool)}),
            "questions": run_config.questions.model_copy(update={"requests_per_team": 4}),
        }
    )
    questions = assign_teams(run_config, POOL, training_questions(run_config.questions, 48), "x")
    for start in range(0, 48, 4):
        first, *others = questions[start : start + 4]
        assert all((each.workers, each.cards) == (first.workers, first.cards) for each in others)
        assert len({each.question.source for each in questions[start : start + 4]}) == 1
    drawn = [each.cards["a"] for each in questions[::4] if each.question.source == "recorded"]
    assert len(set(drawn)) > 1
    assert all(card.startswith("a: ") for card in drawn)
    (measured,) = {
        each.cards["a"] for each in eval_questions(run_config, POOL) if each.question.source == "recorded"
    }
    assert "100 % of" in measured
    wrong = run_config.model_copy(
        update={"pool": run_config.pool.model_copy(update={"cards": {"recorded": f"recorded:{recording}"}})}
    )
    with pytest.raises(SettingsError, match=r"pool\.cards\.recorded: .* add part=train"):
        assign_teams(wrong, POOL, [], "x")


def test_held_out_questions_are_not_trained_and_long_ones_are_omitted(tmp_path: Path, recording: Path):
    run_config = mix(tmp_path, recording, max_chars=200)
    taught = {question.text for question in training_questions(run_config.questions, 120)}
    questions = [each.question for each in eval_questions(run_config, POOL)]
    assert not taught & {question.text for question in questions}
    assert Counter(question.source for question in questions) == {"skills": 20, "recorded": 10}
    assert all("Think" not in text for text in taught)


def test_an_invalid_mix_is_an_error_with_its_field(tmp_path: Path, recording: Path):
    same = mix(tmp_path, recording, held_out=f"recorded:{recording}?part=all")
    with pytest.raises(SettingsError, match=r"is in both train and held_out"):
        eval_questions(same, POOL)
    with pytest.raises(SettingsError, match=r"no question of at most 3 characters"):
        training_questions(mix(tmp_path, recording, max_chars=3).questions, 30)
    with pytest.raises(SettingsError, match=r"cannot be read"):
        training_questions(mix(tmp_path, tmp_path / "nowhere").questions, 30)
    with pytest.raises(
        SettingsError, match=r"pool\.teams\.recorded: unknown worker 'b'\. Choose from: adder, speller, a"
    ):
        eval_questions(mix(tmp_path, recording), POOL[:3])
    with pytest.raises(SettingsError, match=r"must sum to less than 1"):
        config(tmp_path, questions={"also": [{"train": "a", "held_out": "b", "share": 0.6}] * 2})


def split(path: Path, *lines: str, **changes: Any) -> Any:
    """Return a config whose questions are a file with the one line `line()`, and whose held-out questions are
    `lines`.
    """
    (path / "q.jsonl").write_text(line(), "utf-8")
    (path / "held_out.jsonl").write_text("\n".join(lines), "utf-8")
    files = {"source": "jsonl", "path": str(path / "q.jsonl"), "held_out_path": str(path / "held_out.jsonl")}
    return config(path, questions=files | changes, held_out=2)


def test_a_held_out_file_may_have_fewer_questions_than_requested(tmp_path: Path):
    one = split(tmp_path, line(id="2", text="3 + 4?", expected="7"))
    assert [each.question.id for each in eval_questions(one, POOL)] == ["2"]
    three = split(tmp_path, *(line(id=str(number), text=f"{number} + 1?") for number in (2, 3, 4)))
    assert [each.question.id for each in eval_questions(three, POOL)] == ["2", "3"]


@pytest.mark.parametrize("taught", [{"id": "2"}, {"text": "3 + 4?"}], ids=["text", "id"])
def test_a_question_in_both_files_is_rejected(tmp_path: Path, taught: dict[str, str]):
    with pytest.raises(SettingsError, match=r"is in both .*held_out\.jsonl and .*q\.jsonl"):
        eval_questions(split(tmp_path, line(**taught)), POOL)


def test_a_file_without_a_held_out_file_permits_no_held_out_questions(tmp_path: Path):
    with pytest.raises(
        SettingsError, match=r"questions\.held_out_path to a file of such questions, or set held_out to 0"
    ):
        eval_questions(split(tmp_path, line(), held_out_path=None), POOL)
    with pytest.raises(SettingsError, match="held_out_path is only allowed for the source jsonl"):
        config(tmp_path, questions={"held_out_path": "held_out.jsonl"})


CODE = {"entry_point": "one", "prompt": "def one():\n", "test": "def check(f):\n    assert f() == 1"}
ENTRY = {"question": "2 + 2?", "answer": "4", "metadata": {}}


def line(**changes: Any) -> str:
    """Return a question as a line. A field that is None in `changes` is omitted."""
    whole = {
        "id": "1",
        "text": "2 + 2?",
        "expected": "4",
        "grader": "numeric",
        "source": "mine",
        "family": "sums",
    }
    return json.dumps(
        {name: value for name, value in (whole | changes).items() if value is not None}, ensure_ascii=False
    )


def of_file(path: Path, *lines: str) -> list[Question]:
    """Return the questions of a `jsonl` source with these lines."""
    path.write_text("\n".join(lines), "utf-8")
    return training_questions(QuestionsConfig(source="jsonl", path=str(path)), len(lines))


def test_questions_of_a_file_use_all_fields_of_their_lines(tmp_path: Path):
    two = {"parts": ["Add it."], "level": 3}
    questions = of_file(
        tmp_path / "q.jsonl",
        line(),
        line(id="2", text="So\u2028what?", facts=two),
        line(id="3", grader="code", facts=CODE),
    )
    by_id = {question.id: question for question in questions}
    assert by_id["1"] == Question("1", "2 + 2?", "4", "numeric", "mine", "sums")
    assert (by_id["2"].text, by_id["2"].facts) == ("So\u2028what?", two)
    assert asyncio.run(grade(by_id["3"], "    return 1")).correct


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"text": None}, "text: this field is required. The fields are id, text, expected"),
        ({"text": " "}, "text: must not be empty"),
        ({"id": 1}, "id: must be text, not int. Write it in quotes"),
        ({"expected": 4}, "expected: must be text, not int. Write it in quotes"),
        ({"answer": "4"}, "answer: this is not a field of a question. Remove it, or move it into facts"),
        ({"grader": "nope {x}"}, "grader: unknown grader 'nope {x}'. Choose from exact, numeric"),
        ({"expected": "four"}, "expected: 'four' is not a number. Use a number, or another grader"),
        ({"expected": "nan"}, "expected: 'nan' is not a number"),
        ({"grader": "exact", "expected": ""}, "expected: must not be empty"),
        (
            {"grader": "choice", "expected": "AB"},
            "expected: 'AB' is not a choice. Use one of the letters ABCDEFGHIJ",
        ),
        ({"grader": "code"}, "facts.entry_point: this field is required. The fields are"),
        ({"grader": "code", "facts": CODE | {"test": ["assert"]}}, "facts.test: must be text, not list"),
        ({"grader": "recorded", "facts": {"right": "4"}}, "facts.right: must be a list, not str"),
        ({"grader": "reasoning_gym", "family": "gcd"}, "facts.entry: this field is required. The fields are"),
        (
            {"grader": "reasoning_gym", "facts": {"entry": ENTRY}},
            "family: 'sums' is not a data set with a reliable scorer",
        ),
        ({"facts": []}, "facts: must be an object, not list"),
        ({"facts": {"parts": [1]}}, "facts.parts.0: must be text, not int"),
    ],
)
def test_a_line_that_cannot_be_graded_is_an_error_with_number_and_field(
    tmp_path: Path, changes: dict[str, Any], message: str
):
    path = tmp_path / "q.jsonl"
    with pytest.raises(SettingsError, match=re.escape(f"{path}, line 3: {message}")):
        of_file(path, line(), "", line(**({"id": "2"} | changes)))


def test_a_line_that_is_not_a_json_object_is_rejected(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    with pytest.raises(
        SettingsError, match=r"line 2: invalid JSON \(.*\)\. Each line must be one JSON object"
    ):
        of_file(path, line(), "{")
    with pytest.raises(
        SettingsError, match=r"line 1: each line must be a JSON object with the fields id, text"
    ):
        of_file(path, "[]")
    with pytest.raises(SettingsError, match=r"has no questions"):
        of_file(path, "")


def test_a_missing_or_non_utf8_file_is_an_error(tmp_path: Path):
    path = tmp_path / "q.jsonl"
    source = QuestionsConfig(source="jsonl", path=str(path))
    with pytest.raises(SettingsError, match=r"cannot be read: No such file"):
        training_questions(source, 1)
    path.write_bytes(line(text="Wie groß?").encode("latin-1"))
    with pytest.raises(SettingsError, match=r"q.jsonl is not UTF-8 .* Save it as UTF-8"):
        training_questions(source, 1)


def test_two_lines_with_one_id_are_rejected(tmp_path: Path):
    with pytest.raises(
        SettingsError, match=r"line 3: id: '1' is already used in line 1. Give each question a unique id"
    ):
        of_file(tmp_path / "q.jsonl", line(), line(id="2"), line(text="3 + 3?", expected="6"))


def test_two_different_questions_with_one_id_are_rejected(tmp_path: Path):
    sets: list[dict[str, Any]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "q.jsonl").write_text(json.dumps({"question": name, "answer": name}), "utf-8")
        sets.append({"train": f"jsonl:{tmp_path / name / 'q.jsonl'}", "held_out": "gsm8k", "share": 0.3})
    with pytest.raises(SettingsError, match=r"two different questions have the id 'q/0'\. Rename one"):
        training_questions(config(tmp_path, questions={"also": sets}).questions, 30)
    same = config(tmp_path, questions={"also": [sets[0]]})
    assert Counter(question.id for question in training_questions(same.questions, 30))["q/0"] == 9


def test_every_grader_with_checked_facts_exists():
    assert FACTS.keys() <= GRADERS.keys()


def test_unknown_or_too_small_families_are_an_error():
    with pytest.raises(SettingsError, match=r"questions.families: unknown family 'magic'\. Choose from: "):
        training_questions(QuestionsConfig(families=("magic",)), 1)
    with pytest.raises(SettingsError, match=r"set composite_share to 0"):
        training_questions(QuestionsConfig(families=("logic",)), 10)
