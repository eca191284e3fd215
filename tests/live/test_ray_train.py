import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.lazy import lazy
from tests.training.test_run import curve
from tests.training.tiny_models import config
from training.run_dir import RunDir

TrainingRun = lazy("training.run:TrainingRun")


@pytest.mark.slow
@pytest.mark.timeout(480)
def test_one_ray_worker_trains_to_the_same_curve_as_without_ray(tmp_path: Path):
    training_config = config(tmp_path, warm_start={"examples": 320}, grpo={"steps": 2})
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(training_config.model_dump(mode="json")), "utf-8")
    command = [
        sys.executable,
        "-m",
        "training.cli",
        "--ray-workers",
        "1",
        "--config",
        str(file),
        "--out",
        str(tmp_path / "ray"),
    ]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=450)  # Its Ray ends with it.
    assert ended.returncode == 0, ended.stderr[-4000:]
    TrainingRun(training_config, RunDir.begin(tmp_path / "plain", training_config, resume=False)).run()
    assert [each["reward"] for each in curve(tmp_path / "ray")] == [
        each["reward"] for each in curve(tmp_path / "plain")
    ]
    assert (tmp_path / "ray" / "report.json").exists()
