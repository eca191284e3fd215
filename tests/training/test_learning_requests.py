"""Run over requests of the curriculum: look-ups, warm start, expected reward and GRPO, each with its own team."""

import re
from pathlib import Path

import pytest

from tests.lazy import lazy
from tests.training.test_curriculum import POOL
from tests.training.tiny_models import config
from training.run_dir import RunDir

TrainingRun = lazy("training.run:TrainingRun")


@pytest.mark.slow
def test_a_run_over_requests_completes_all_stages(tmp_path: Path):
    run_config = config(
        tmp_path,
        POOL,
        questions={"source": "requests", "families": None, "requests_per_team": 4},
        look_up={
            "examples": 24,
            "per_team": 8,
            "named_per_team": 4,
            "of_parts_per_team": 2,
            "made_up_share": 0,
        },
        warm_start={"examples": 32, "batch": 2, "fields": ["needs", "worker", "subtask", "access"]},
        expected_reward={"examples": 16, "batch": 2},
        grpo={"steps": 1},
        held_out=4,
    )
    run_dir = RunDir.begin(tmp_path / "run", run_config, resume=False)
    report = TrainingRun(run_config, run_dir).run()
    assert report["steps"] == 1
    for when in ("warm_started", "before", "after"):
        assert report[when]["requests"]["questions"] == 4
    warm, expected = (
        TrainingRun(run_config, run_dir).examples("warm"),
        TrainingRun(run_config, run_dir).examples("expected"),
    )
    assert (len(warm), len(expected)) == (32, 16)
    assert not {each.prompt[-1]["content"] for each in warm} & {
        each.prompt[-1]["content"] for each in expected
    }
    assert all(each.rewards for each in expected)
    assert (tmp_path / "run" / "expected" / "weights.pt").exists()
    assert (tmp_path / "run" / "look_up" / "weights.pt").exists()
    first = TrainingRun(run_config, run_dir).examples("look_up")
    assert [len(each.prompt) for each in first] == 3 * (8 * [1] + 6 * [2]), (
        "of each team the look-ups, then the namings"
    )
    for each in first:
        assert each.prompt[0]["role"] == "system"
        assert each.names_need == (len(each.prompt) == 2)
        digit = r"\d?" if each.names_need else r"\d"
        assert re.fullmatch(rf'\{{"needs": ".+", "worker": {digit}', each.plan.splitlines()[-1])
    of_parts = [each.plan.splitlines() for place, each in enumerate(first) if place % 14 >= 12]
    assert any(len(steps) > 1 for steps in of_parts)
