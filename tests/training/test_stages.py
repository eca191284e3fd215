"""The comparison of a run's stages: its clock, and what it asks of a config. The whole of it is
`python -m training.stages`.
"""

import time
from types import SimpleNamespace

import pytest

from serving.settings.settings import SettingsError
from training.config import load
from training.data import assign_teams, training_questions
from training.stages import Clock, check


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
