import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from evaluation import replay_settings
from evaluation.cli import main
from tests.base_only import with_base_only
from tests.evaluation.pools import ROWS, write_recording

ROOT = Path(__file__).parents[2]


def replay_pool(folder: Path) -> tuple[str, Path]:
    path, prices, settings = write_recording(folder), folder / "prices.yaml", folder / "pool.yaml"
    prices.write_text("lab_good: 0.02\nlab_half: 0.01\nlab_mute: 0\n")
    assert replay_settings.main([path, "--prices", str(prices), "--out", str(settings)]) == 0
    return path, settings


def test_a_replayed_pool_is_evaluated_by_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, settings = replay_pool(tmp_path)
    out = tmp_path / "out"
    command = [
        "--settings",
        str(settings),
        "--questions",
        f"recorded:{path}",
        "--strategies",
        "single,vote",
        "oracle",
        "--out",
        str(out),
    ]
    assert main(command) == 0
    report = json.loads((out / "report.json").read_text())
    rows = {row["strategy"]: row for row in report["rows"]}
    assert rows["single:good"]["accuracy"]["mean"] == rows["oracle"]["accuracy"]["mean"] == 1
    assert (
        rows["single:half"]["accuracy"]["mean"]
        == sum(row["models"]["lab_half"]["s"] >= 0.99 for row in ROWS) / 20
    )
    assert rows["single:mute"]["abstentions"] == 20
    assert (rows["single:good"]["cost_usd"], rows["single:good"]["prompt_tokens"]) == (
        pytest.approx(0.02),
        None,
    )
    assert rows["oracle"]["cost_usd"] == pytest.approx(0.015), "the cheapest of those who are right"
    pair = next(
        p for p in report["comparisons"] if {p["first"], p["second"]} == {"single:good", "single:half"}
    )
    assert (pair["first"], pair["mean"], pair["n"]) == ("single:good", 0.5, 20)
    assert any(warning.startswith("Replayed: good, half, mute") for warning in report["warnings"])
    page = (out / "report.html").read_text()
    assert page.count("<svg") == 4, "there is no picture of tokens, which nobody knows"
    assert "No model was called" in page
    assert "http" not in page.replace("http://www.w3.org", "").replace("http://purl.org", "").replace(
        "https://matplotlib.org", ""
    ).replace("http://creativecommons.org", "")
    assert "single:good" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--settings", "no-such.yaml", "--questions", "gsm8k"], "no-such.yaml cannot be read"),
        (["--settings", "cluster/scripted.yaml", "--questions", "none"], "Unknown question set 'none'"),
        (["--settings", "cluster/local.yaml", "--questions", "gsm8k"], "--url"),
        (["--url", "http://127.0.0.1:1", "--questions", "gsm8k"], "make serve"),
        (
            ["--settings", "cluster/scripted.yaml", "--questions", "gsm8k", "--train", "gsm8k"],
            "All --train questions",
        ),
    ],
)
def test_an_invalid_command_exits_2_with_its_reason(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.chdir(ROOT)
    assert main([*arguments, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--seed", "-1"),
        ("--seed", "1.5"),
        ("--train-seed", "-1"),
        ("--deadline-s", "nan"),
        ("--deadline-s", "inf"),
        ("--deadline-s", "0"),
        ("--deadline-s", "-1"),
        ("--deadline-s", "soon"),
        ("--temperature", "nan"),
        ("--temperature", "-0.1"),
        ("--temperature", "2.1"),
    ],
)
def test_an_invalid_value_is_rejected_before_any_call(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
):
    with pytest.raises(SystemExit) as exit_info:
        main(["--settings", "cluster/scripted.yaml", "--questions", "gsm8k", option, value])
    assert exit_info.value.code == 2
    assert f"Invalid value for '{option}': " in capsys.readouterr().err


def test_help_lists_every_question_set_and_strategy(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    page = capsys.readouterr().out
    assert exit_info.value.code == 0
    assert all(
        word in page for word in ("reasoning_gym:", "humaneval", "masrouter", "best_of_n", "--strategy-usd")
    )


def test_a_full_disk_exits_1_and_the_same_command_resumes(tmp_path: Path):
    path, settings = replay_pool(tmp_path)
    out = tmp_path / "out"
    command = f"{sys.executable} -m evaluation.cli --settings {settings} --questions recorded:{path} --strategies single --out {out}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    full = subprocess.run(
        ["bash", "-c", f"ulimit -f 4; {command}"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (full.returncode, "File too large" in full.stderr) == (1, True), full.stderr
    n_results = (out / "results.jsonl").read_bytes().count(b"\n")
    assert 0 < n_results < 60
    assert main(command.split()[3:]) == 0
    assert (out / "results.jsonl").read_bytes().count(b"\n") == 60


def test_ctrl_c_exits_130_and_the_same_command_resumes(tmp_path: Path):
    slow = {"name": "slow", "kind": "scripted", "replies": ["<answer>2</answer>"], "delay_s": 0.4}
    settings, questions, out = tmp_path / "s.yaml", tmp_path / "q.jsonl", tmp_path / "out"
    settings.write_text(yaml.safe_dump({"workers": [slow]}))
    questions.write_text("".join(json.dumps({"question": f"{n}?", "answer": "2"}) + "\n" for n in range(4)))
    command = [
        sys.executable,
        "-m",
        "evaluation.cli",
        "--settings",
        settings,
        "--questions",
        f"jsonl:{questions}",
        "--strategies",
        "single",
        "--concurrency",
        "1",
        "--out",
        out,
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    results = out / "results.jsonl"
    while (not results.exists() or b"\n" not in results.read_bytes()) and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Run the same command to resume" in stderr
    before = results.read_bytes()
    assert 1 <= before.count(b"\n") < 4
    assert main(list(map(str, command[3:]))) == 0
    assert results.read_bytes().startswith(before)
    assert results.read_bytes().count(b"\n") == 4


def test_without_its_packages_the_command_exits_2_with_the_install_command():
    arguments = "'--settings cluster/scripted.yaml --questions gsm8k --strategies single'.split()"
    ended = with_base_only(f"from evaluation.cli import main\nsys.exit(main({arguments}))")
    assert ended.returncode == 2, ended.stderr
    assert "is not installed" in ended.stderr
    assert "make setup-learning" in ended.stderr
