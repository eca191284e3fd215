from pathlib import Path

import pytest
import yaml

from tests.training.test_run import curve
from tests.training.tiny_models import config
from training.folder import RunFolder
from training.ray_train import main
from training.run import TrainingRun


@pytest.mark.ray
def test_one_ray_worker_trains_to_the_same_curve_as_without_ray(tmp_path: Path):
    made = config(tmp_path, warm_start={"examples": 320}, grpo={"steps": 2})
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(made.model_dump(mode="json")), "utf-8")
    assert main(["--config", str(file), "--out", str(tmp_path / "ray")]) == 0
    TrainingRun(made, RunFolder.begun(tmp_path / "plain", made, resume=False)).run()
    assert [each["reward"] for each in curve(tmp_path / "ray")] == [
        each["reward"] for each in curve(tmp_path / "plain")
    ]
    assert (tmp_path / "ray" / "report.json").exists()
