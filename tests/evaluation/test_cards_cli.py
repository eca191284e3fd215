"""`podium cards` as a command."""

import json
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from evaluation import replay_settings, sources
from evaluation.cards.cli import main
from evaluation.outcome import RunOutcome
from evaluation.questions import Grade
from evaluation.results import Result, ResultLog
from evaluation.sources.recorded import select
from evaluation.spec import Spec
from serving.settings.patch import apply_patch
from serving.settings.settings import load
from tests.base_only import with_base_only
from tests.evaluation.pools import ROWS
from tests.evaluation.test_cards_records import records, step

FAMILIES = ("simple_equations", "shortest_path")


def write_recording(folder: Path) -> str:
    """Write 120 questions: `good` has all equations and no graphs right, `even` half of each."""
    rows: list[dict[str, Any]] = [
        ROWS[0]
        | {"dataset": FAMILIES[n % 2], "category": "any", "question": f"{n}, what is it?"}
        | {
            "models": {
                "lab_good": {"s": float(n % 2 == 0), "a": "1"},
                "lab_even": {"s": float(n % 4 < 2), "a": "1"},
            }
        }
        for n in range(120)
    ]
    path = folder / "recorded.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def settings(folder: Path, text: str) -> Path:
    path = folder / "pool.yaml"
    path.write_text(text)
    return path


POOL = """\
# my pool
workers:
  - {name: good, kind: openai, model: m, base_url: "http://127.0.0.1:1/v1"} # it is good
  - {name: even, kind: scripted, card: written by hand}
"""


def test_cards_are_printed_with_their_number_of_questions(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name = f"recorded:{write_recording(tmp_path)}?part=train"
    assert main(["--recorded", name]) == 0
    questions = select(Spec.parse(name))
    families = [question.dataset for _, question in questions]
    row = next(line for line in capsys.readouterr().out.splitlines() if "lab_good" in line)
    assert "best at equations (100 %); worst at graphs (0 %)" in row
    assert f"of {len(questions)} overall" in row
    assert f"{families.count(FAMILIES[0])}, {families.count(FAMILIES[1])}" in row


def test_a_hand_written_card_is_replaced_only_with_the_option(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pool, arguments = (
        settings(tmp_path, POOL),
        ["--recorded", f"recorded:{write_recording(tmp_path)}?part=train", "--into"],
    )
    assert main([*arguments, str(pool)]) == 0
    assert "Kept unchanged: card of even. Use --replace" in capsys.readouterr().err
    text = pool.read_text()
    good, even = load(pool).workers
    assert good.card.startswith("best at equations")
    assert even.card == "written by hand"
    assert text.replace(f', card: "{good.card}"', "") == POOL
    assert main([*arguments, str(pool), "--replace"]) == 0
    assert load(pool).worker("even").card.startswith("no kind of question stands out")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_cards_start_with_worker_names_if_requested(tmp_path: Path):
    pool = settings(tmp_path, POOL)
    arguments = [
        "--recorded",
        f"recorded:{write_recording(tmp_path)}?part=train",
        "--into",
        str(pool),
        "--replace",
    ]
    assert main([*arguments, "--named"]) == 0
    good, even = load(pool).workers
    assert good.card.startswith("good: best at equations")
    assert even.card.startswith("even: no kind of question stands out")


def test_a_measured_speed_is_written_to_its_setting_not_to_the_card(tmp_path: Path):
    pool = settings(tmp_path, POOL)
    record_file = records(tmp_path, *[step("good")] * 5, *[step("even")] * 5)
    name = f"recorded:{write_recording(tmp_path)}?part=train"
    assert main(["--recorded", name, "--records", record_file, "--into", str(pool)]) == 0
    good, even = load(pool).workers
    assert good.tokens_per_s == 50
    assert "tokens" not in good.card
    assert good.card.endswith("; about $0.002 a call"), "no price is set, so no other line tells it"
    assert even.tokens_per_s is None, "a scripted worker's sets its speed"


def test_a_card_includes_facts_that_the_prompt_omits(tmp_path: Path):
    bare = POOL.replace("# my pool", 'prompts: {worker: "{number}: {card}"}').replace(
        "model: m,", "model: m, sees_images: true, context_tokens: 32000, tokens_per_s: 80,"
    )
    pool = settings(
        tmp_path, bare.replace("m,", "m, price: {input_usd_per_mtok: 1, output_usd_per_mtok: 4},", 1)
    )
    assert main(["--recorded", f"recorded:{write_recording(tmp_path)}?part=train", "--into", str(pool)]) == 0
    assert (
        load(pool)
        .worker("good")
        .card.endswith(
            "overall; $4 per million output tokens; 80 tokens/s; context of 32,000 tokens; sees images"
        )
    )


def test_an_evaluations_results_become_cards_of_its_settings(tmp_path: Path):
    path, pool, out = write_recording(tmp_path), tmp_path / "pool.yaml", tmp_path / "out"
    assert replay_settings.main([path, "--out", str(pool)]) == 0
    with ResultLog(out / "results.jsonl") as log:
        for number, question in enumerate(sources.load(f"recorded:{path}?part=train")):
            grade = Grade(question.facts["dataset"] == FAMILIES[0], "1")
            outcome = RunOutcome("1", cost_usd=None if number == 0 else Decimal("0.01"))
            log.add(Result.of("single:good", question, "d", outcome, grade, {}))
            log.add(Result.of("vote", question, "d", outcome, grade, {}))
    (out / "results.jsonl").open("a").write(
        '{"strategy": "single:go'
    )  # cut off, as when the evaluation is killed
    assert main(["--results", str(out), "--into", str(pool), "--replace"]) == 0
    assert load(pool).worker("good").card.startswith("best at equations (100 %); worst at graphs (0 %)")
    assert "a call" not in load(pool).worker("good").card, "one cost is unknown, so the mean is"
    assert "replayed" in load(pool).worker("even").card, "nobody asked it"
    assert (out / "results.jsonl").read_text().endswith("single:go"), "the evaluation's file is only read"


def test_a_patch_for_user_config_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    name = f"recorded:{write_recording(tmp_path)}?part=train"
    assert main(["--recorded", name, "--print-yaml", "--settings", str(settings(tmp_path, POOL))]) == 0
    patch = yaml.safe_load(capsys.readouterr().out)["workers"]
    assert [sorted(worker) for worker in patch] == [["card", "name"]] * 2
    assert {worker["name"] for worker in patch} == {"good", "even"}
    changed = apply_patch(load(tmp_path / "pool.yaml"), {"workers": patch})
    assert changed.worker("good").card.startswith("best at equations")


def test_measured_names_can_be_mapped_to_workers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pool = settings(tmp_path, POOL.replace("name: good", "name: best").replace("name: even", "name: other"))
    arguments = ["--recorded", f"recorded:{write_recording(tmp_path)}?part=train", "--into", str(pool)]
    assert main(arguments) == 2
    assert "No measured name" in capsys.readouterr().err
    assert main([*arguments, "--name", "lab_good=best"]) == 0
    assert "has no worker for these measured names" in capsys.readouterr().err
    assert load(pool).worker("best").card.startswith("best at equations")


def test_two_measured_names_of_one_worker_must_be_resolved_by_the_user(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pool, path = settings(tmp_path, POOL), Path(write_recording(tmp_path))
    path.write_text(path.read_text().replace("lab_even", "shop_good"))
    arguments = ["--recorded", f"recorded:{path}?part=train", "--into", str(pool)]
    assert main(arguments) == 2
    assert "lab_good and shop_good both match the worker good" in capsys.readouterr().err
    assert main([*arguments, "--name", "lab_good=good"]) == 0
    assert load(pool).worker("good").card.startswith("best at equations")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("", "Use --results, --recorded or --records"),
        ("--recorded recorded:{recorded}", "held-out"),
        ("--recorded skills", "is not a recorded pool"),
        ("--recorded recorded:{recorded}?part=train --workers nobody", "'nobody' has no measurements"),
        ("--recorded recorded:{recorded}?part=train&difficulty=none", "has no recorded answers"),
        ("--recorded recorded:{recorded}?part=train --name lab_good=best", "--name needs --settings"),
        (
            "--recorded recorded:{recorded}?part=train --into {pool} --name lab_good=me",
            "'me' does not exist. Choose from: good, even",
        ),
        (
            "--recorded recorded:{recorded}?part=train --into {pool} --settings {pool}",
            "cannot be used together",
        ),
        ("--recorded recorded:{recorded}?part=train --into {pool}.none", "cannot be read"),
        ("--results {pool}.none", "Pass the --out folder"),
        ("--results {recorded}", "is not a result"),
        ("--records {recorded}", "has no valid records"),
    ],
)
def test_an_invalid_command_exits_2_with_its_reason_and_writes_nothing(
    arguments: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    pool = settings(tmp_path, POOL)
    assert main(shlex.split(arguments.format(recorded=write_recording(tmp_path), pool=pool))) == 2
    assert message in capsys.readouterr().err
    assert pool.read_text() == POOL


def test_a_write_error_exits_1_and_leaves_the_file_unchanged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    folder = tmp_path / "pools"
    folder.mkdir()
    pool = settings(folder, POOL)
    (folder / ".pool.yaml.new").mkdir()  # makes the write fail for root too
    assert main(["--recorded", f"recorded:{write_recording(tmp_path)}?part=train", "--into", str(pool)]) == 1
    assert "is unchanged" in capsys.readouterr().err
    assert pool.read_text() == POOL


@pytest.mark.parametrize("form", [[], ["--print-yaml"]])
def test_a_full_disk_at_standard_output_is_an_error_and_changes_no_file(tmp_path: Path, form: list[str]):
    pool = settings(tmp_path, POOL)
    name = f"recorded:{write_recording(tmp_path)}?part=train"
    command = ["-m", "evaluation.cards.cli", "--recorded", name, "--into", str(pool), "--replace", *form]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([sys.executable, *command], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ended.returncode, ended.stderr) == (
        2,
        "podium cards: Cannot print the cards: No space left on device. Nothing was written.\n",
    )
    assert pool.read_text() == POOL


def test_control_characters_in_a_record_are_not_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    record_file = records(tmp_path, *[step("\x1b[2J\u202ego\nod")] * 5, *[step("x" * 9999)] * 5)
    assert main(["--records", record_file]) == 0
    assert main(["--records", record_file, "--workers", "none"]) == 2
    assert main(["--records", str(tmp_path / "\x1b[2J")]) == 2
    shown = capsys.readouterr()
    assert not {"\x1b", "\u202e"} & set(shown.out + shown.err)
    assert "\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}go od" in shown.out
    assert "x" * 101 not in shown.err


def test_the_command_needs_only_the_base_packages(tmp_path: Path):
    ended = with_base_only(
        "from evaluation.cards.cli import main\n"
        f"sys.exit(main(['--recorded', 'recorded:{write_recording(tmp_path)}?part=train', '--settings', 'cluster/scripted.yaml', '--name', 'lab_good=a']))"
    )
    assert ended.returncode == 0, ended.stderr
    assert "best at equations" in ended.stdout
