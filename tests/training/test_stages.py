"""The comparison of a run's stages: its clock, what it asks of a config, and the whole of it for a second a
stage.
"""

import io
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from serving.settings.settings import SettingsError
from tests.training.test_checks import write_recording
from tests.training.test_curriculum import POOL
from tests.training.tiny_models import config
from training.config import load
from training.curriculum.requests import SHARES
from training.data import assign_teams, training_questions
from training.stages import ARMS, Clock, Comparison, check, plot, show


def burn(seconds: float) -> None:
    """Compute for so long."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def step(clock: Clock) -> bool:
    control = SimpleNamespace(should_training_stop=False)
    clock.on_step_end(None, None, control)
    return control.should_training_stop


def test_the_clock_stops_training_and_does_not_count_what_measuring_takes() -> None:
    def measure() -> dict[str, float]:
        burn(0.3)
        return {"right": 0.5}

    clock = Clock(minutes=0.2 / 60, every_s=0.1, measure=measure)
    clock.note()
    assert not step(clock), "measuring took 0.3 s, training nothing"
    burn(0.11)
    assert not step(clock)
    assert len(clock.points) == 2, "the second point is 0.1 s after the first"
    burn(0.11)
    assert step(clock)
    assert [each["right"] for each in clock.points] == [0.5, 0.5, 0.5]
    assert clock.points[-1]["minutes"] < 0.3 / 60


def test_a_config_without_all_stages_cannot_be_compared() -> None:
    check(load("training/configs/stages.yaml"))
    with pytest.raises(SettingsError, match="lacks expected_reward"):
        check(load("training/configs/tiny.yaml"))


def test_workers_keep_their_order_where_a_config_says_so() -> None:
    config = load("training/configs/stages.yaml")
    pool = ["a", "b", "c", "d", "e", "f"]
    teams = assign_teams(config, pool, training_questions(config.questions, 20), "pools")
    assert {each.workers for each in teams} == {tuple(pool)}


NEEDS = ["needs", "worker", "subtask", "access"]


@pytest.mark.slow
@pytest.mark.parametrize("with_recorded", [False, True], ids=["requests", "requests and recorded"])
def test_the_stages_are_compared_on_requests_and_drawn_in_one_picture(
    tmp_path: Path, with_recorded: bool
) -> None:
    name = write_recording(tmp_path)
    also: list[dict[str, Any]] = [
        {"train": f"{name}?part=train", "held_out": f"{name}?part=test", "share": 0.25}
    ]
    questions = {"source": "requests", "families": None, "requests_per_team": 4}
    run_config = config(
        tmp_path,
        POOL,
        questions=questions | {"also": also if with_recorded else []},
        look_up={"examples": 8, "per_team": 4},
        warm_start={"examples": 16, "batch": 2, "fields": NEEDS},
        expected_reward={"examples": 16, "batch": 2},
        grpo={"steps": 20},
        held_out=8,
    )
    check(run_config)
    comparison = Comparison(run_config, tmp_path / "run", minutes=0.005, every_s=0.15)
    curves = comparison.run()
    assert curves.keys() == ARMS.keys()
    kinds = {kind.replace("_", " ") for kind in SHARES}
    for points in curves.values():
        assert len(points) >= 2
        assert points[-1]["minutes"] > points[0]["minutes"] == 0
        for point in points:
            assert point["questions"] == 8
            assert 0 <= point["right"] <= point["parsed"] <= 1
            assert ("recorded" in point["kinds"]) == with_recorded
            assert point["kinds"].keys() - {"recorded"} <= kinds
    assert "SYNTHETIC" in comparison.workers
    plot({"0": curves, "1": curves}, comparison.workers, tmp_path / "stages.png")
    assert (tmp_path / "stages.png").read_bytes().startswith(b"\x89PNG")
    json.dumps(curves, allow_nan=False)
    output = io.StringIO()
    show(Console(file=output, width=400), 0, curves)
    assert [line.split(",")[1].split(":")[0].strip() for line in output.getvalue().splitlines()] == [
        *ARMS.values()
    ]
