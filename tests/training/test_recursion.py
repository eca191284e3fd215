"""Second rounds: the prompt of the policy, and the rewards of both plans."""

import json
import shutil
from pathlib import Path

import pytest

from tests.lazy import lazy
from tests.training.tiny_models import config
from training.recursion import blend
from training.run_dir import RunDir

TrainingRun = lazy("training.run:TrainingRun")


def test_the_first_plan_gets_a_share_of_the_second_plans_reward():
    assert blend(0.5, 1.0, 0.25) == 0.625
    assert blend(1.0, 0.5, 0.25) == 0.875
    assert blend(1.0, None, 0.25) is None


@pytest.mark.slow
@pytest.mark.usefixtures("warm_start")
def test_a_run_of_two_rounds_trains_on_both_and_resumes(tmp_path: Path):
    run_config = config(
        tmp_path, grpo={"recursion": {"discount": 0.25}, "steps": 2, "micro_batch": 16}, checkpoint_every=1
    )
    TrainingRun(run_config, RunDir.begin(tmp_path / "run", run_config, resume=False)).run()
    lines = [json.loads(line) for line in (tmp_path / "run" / "curves.jsonl").read_text("utf-8").splitlines()]
    assert all(
        "plan/parsed" in line and "second/plan/parsed" in line and "second/accepted" in line for line in lines
    )
    assert lines[0]["plan/parsed"] > 0.5  # The warm start taught first plans.
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "checkpoint-2")
    (tmp_path / "run" / "report.json").unlink()
    TrainingRun(run_config, RunDir.begin(tmp_path / "run", run_config, resume=True)).run()
    again = [json.loads(line) for line in (tmp_path / "run" / "curves.jsonl").read_text("utf-8").splitlines()]
    assert [line["reward"] for line in again] == [line["reward"] for line in lines]
