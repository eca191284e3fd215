"""Small whole runs: reproducible, resumable, and unchanged by an outage."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from serving.settings.settings import SettingsError
from tests.lazy import lazy
from tests.training.tiny_models import POOL, config
from training.cli import main
from training.config import Config
from training.run_dir import RunDir

torch = lazy("torch")
TrainingRun = lazy("training.run:TrainingRun")
Kill = lazy("tests.training.callbacks:Kill")
Weights = lazy("tests.training.callbacks:Weights")
Outage = lazy("tests.training.callbacks:Outage")

CURVE = ("loss", "reward", "grad_norm", "plan/parsed", "plan/right", "completions/mean_length", "num_tokens")


SMALL: dict[str, Any] = {"warm_start": {"examples": 64}, "grpo": {"steps": 2}}


def run(path: Path, run_config: Config, *callbacks: Any, resume: bool = False) -> list[dict[str, Any]]:
    """Run a training. Return its curve without times."""
    folder = RunDir.begin(path, run_config, resume=resume)
    TrainingRun(run_config, folder).run(callbacks)
    return curve(path)


def curve(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (path / "curves.jsonl").read_text("utf-8").splitlines()]
    return [{"step": each["step"]} | {name: each[name] for name in CURVE} for each in lines]


def weights(path: Path) -> bytes:
    return (path / "final" / "model.safetensors").read_bytes()


@dataclass(frozen=True)
class FinishedRun:
    config: Config
    path: Path
    curve: list[dict[str, Any]]


@pytest.fixture(scope="module")
def whole(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    path = tmp_path_factory.mktemp("whole")
    shutil.copytree(warm, path / "run" / "warm")
    run_config = config(path, held_out=6)
    return FinishedRun(run_config, path / "run", run(path / "run", run_config))


@pytest.mark.slow
@pytest.mark.usefixtures("warm_start")
@pytest.mark.parametrize("politely", [False, True])
def test_a_killed_run_resumes_to_the_same_curve_and_the_same_weights(
    tmp_path: Path, whole: FinishedRun, politely: bool
):
    from training.run import RunStopped

    assert [each["step"] for each in whole.curve] == [1, 2, 3, 4]
    assert any(float(each["grad_norm"]) > 0 for each in whole.curve[2:])
    with pytest.raises(RunStopped if politely else MemoryError):
        run(tmp_path / "cut", whole.config, Kill(3 if not politely else 2, politely=politely))
    assert [each["step"] for each in curve(tmp_path / "cut")] == [1, 2, 3]
    assert run(tmp_path / "cut", whole.config, resume=True) == whole.curve
    assert weights(tmp_path / "cut") == weights(whole.path)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_start")
def test_another_seed_gives_another_run(tmp_path: Path, whole: FinishedRun):
    """The test of an interrupted run covers the same seed: it makes its first two steps twice."""
    run(tmp_path / "run", whole.config.model_copy(update={"seed": 1}))
    assert weights(tmp_path / "run") != weights(whole.path)


@pytest.mark.slow
@pytest.mark.usefixtures("warm_start")
def test_an_outage_changes_no_weights_and_no_momentum(tmp_path: Path):
    """The workers fail from the third step on, when the optimizer has momentum and its weight decay would change
    weights.
    """
    from tests.training import unavailable_skills

    unavailable_skills.CALLS_LEFT = None
    pool = POOL.replace(
        "evaluation.synthetic.skills:Skill", "tests.training.unavailable_skills:Failing"
    ).replace("card:", "retry: {attempts: 1}, card:")
    run_config = config(tmp_path, pool, grpo={"steps": 4, "weight_decay": 0.1, "memory": 0})
    recorder = Weights()

    run(tmp_path / "run", run_config, recorder, Outage())
    first, second, third, fourth = recorder.weights
    assert not same(first, second)
    assert same(second, third)
    assert same(recorder.moments[1], recorder.moments[2])
    assert any(float(moment.abs().max()) > 0 for moment in recorder.moments[1])
    assert not same(third, fourth)


def same(one: "list[torch.Tensor]", other: "list[torch.Tensor]") -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_a_run_saves_its_config_versions_and_report(tmp_path: Path):
    path = tmp_path / "run"
    run(path, config(tmp_path, **SMALL, held_out=6))
    names = {each.name for each in path.iterdir()}
    assert {
        "config.yaml",
        "pool.yaml",
        "inputs.json",
        "versions.json",
        "report.json",
        "curves.jsonl",
        "tensorboard",
        "checkpoints",
        "final",
    } <= names
    report = json.loads((path / "report.json").read_text("utf-8"))
    assert report["after"]["skills"]["questions"] == 6
    assert set(report["alone"]["skills"]["workers"]) == {"adder", "speller"}
    assert report["alone"]["skills"]["oracle"] == 1
    assert report["provenance"] == {"skills": ["synthetic"]}
    assert "trl" in json.loads((path / "versions.json").read_text("utf-8"))


def test_a_run_is_not_overwritten_or_resumed_with_another_config(tmp_path: Path):
    run_config = config(tmp_path)
    RunDir.begin(tmp_path / "run", run_config, resume=False)
    with pytest.raises(SettingsError, match="--resume"):
        RunDir.begin(tmp_path / "run", run_config, resume=False)
    with pytest.raises(SettingsError, match="another config"):
        RunDir.begin(tmp_path / "run", run_config.model_copy(update={"seed": 5}), resume=True)


def test_a_run_with_a_changed_pool_is_not_resumed(tmp_path: Path):
    run_config = config(tmp_path)
    RunDir.begin(tmp_path / "run", run_config, resume=False)
    config(tmp_path, POOL.replace("card: strings", "card: words"))
    with pytest.raises(SettingsError, match=r"pool\.yaml has changed since"):
        RunDir.begin(tmp_path / "run", run_config, resume=True)
    assert "card: strings" in (tmp_path / "run" / "pool.yaml").read_text("utf-8")


def write_config(folder: Path, **changes: Any) -> Path:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(config(folder, **changes).model_dump(mode="json")), "utf-8")
    return file


@pytest.mark.slow
def test_two_processes_share_one_run(tmp_path: Path):
    file, out = write_config(tmp_path, **SMALL, held_out=4), tmp_path / "two"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*launch, "-m", "training.cli", "--config", str(file), "--out", str(out)]
    ended = subprocess.run(
        command, env=os.environ | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=1350
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert [each["step"] for each in curve(out)] == [1, 2]
    assert json.loads((out / "report.json").read_text("utf-8"))["after"]["skills"]["questions"] == 4
    assert not list(out.rglob("*.partial"))


FULL = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))
from training.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.slow
def test_a_full_disk_ends_the_run_with_a_message_and_1(tmp_path: Path):
    large = {"scratch": {"hidden": 128, "layers": 1, "heads": 1, "vocabulary": 400}}
    file = write_config(tmp_path, **SMALL, model=large)
    command = [sys.executable, "-c", FULL, "--config", str(file), "--out", str(tmp_path / "full")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 1, ended.stderr[-4000:]
    assert "Cannot write to" in " ".join(ended.stderr.split())
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_ctrl_c_before_the_training_exits_130(tmp_path: Path):
    file, out = write_config(tmp_path), tmp_path / "stopped"
    command = [sys.executable, "-m", "training.cli", "--config", str(file), "--out", str(out)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    while not (out / "config.yaml").exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=300)
    assert process.returncode == 130, stderr[-4000:]
    assert "--resume" in " ".join(stderr.split())
    assert "Traceback" not in stderr


def test_the_command_reports_an_invalid_config_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    broken = tmp_path / "broken.yaml"
    broken.write_text(
        "{name: x, model: {path: m, scratch: {}}, pool: {settings: p, modle: q}}", encoding="utf-8"
    )
    assert main(["--config", str(broken)]) == 1
    stderr = " ".join(capsys.readouterr().err.split())
    assert "set either path or scratch, and not both" in stderr
    assert "pool.modle" in stderr
    assert main(["--config", str(tmp_path / "none.yaml")]) == 1
