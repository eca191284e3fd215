"""Checks of a run before anything is drawn, also if nothing is held out."""

import json
from pathlib import Path
from typing import Any

import pytest

from serving.settings.settings import SettingsError
from tests.lazy import lazy
from tests.training.tiny_models import config
from training.config import Config, parse
from training.run_dir import RunDir

TrainingRun = lazy("training.run:TrainingRun")


def write_recording(folder: Path) -> str:
    """Return the name of a recorded set of twenty questions."""
    rows = [
        {
            "dataset": "sums",
            "question": f"{number} + {number}?",
            "expected": str(2 * number),
            "models": {"lab_a": {"s": 1.0, "a": str(2 * number)}},
        }
        for number in range(20)
    ]
    (folder / "recorded.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
    return f"recorded:{folder}/recorded.jsonl"


def check(folder: Path, run_config: Config) -> None:
    """Assert that the checks fail, and that the run itself makes them first."""
    with pytest.raises(SettingsError) as first:
        TrainingRun(run_config, RunDir(folder)).check()
    with pytest.raises(SettingsError) as again:
        TrainingRun(run_config, RunDir(folder)).run()
    assert first.value.message == again.value.message
    assert not (folder / "examples.json").exists(), "nothing was drawn"
    raise first.value


def with_pool(run_config: Config, **pool: Any) -> Config:
    data = run_config.model_dump(mode="json")
    return parse(data | {"pool": data["pool"] | pool})


def test_a_missing_start_adapter_is_an_error(tmp_path: Path):
    lora = {"rank": 16, "start": str(tmp_path / "first" / "final")}
    run_config = config(tmp_path, model={"scratch": None, "path": "some/model", "lora": lora})
    with pytest.raises(SettingsError, match=r"model\.lora\.start: .*first/final/.* cannot be read"):
        check(tmp_path, run_config)


def test_questions_that_are_both_trained_and_held_out_are_an_error(tmp_path: Path):
    also = {
        "train": f"{write_recording(tmp_path)}?part=train",
        "held_out": write_recording(tmp_path),
        "share": 0.5,
    }
    run_config = config(tmp_path, questions={"also": [also]})
    assert run_config.held_out == 0
    with pytest.raises(SettingsError, match=r"is in both train and held_out"):
        check(tmp_path, run_config)


@pytest.mark.parametrize(
    ("pool", "message"),
    [
        (
            {"teams": {"skill": ["adder"]}},
            r"pool\.teams\.skill: no question with this source .*\. Sources: recorded, skills",
        ),
        ({"cards": {"record": "SET?part=train"}}, r"pool\.cards\.record: no question .* Sources: recorded"),
        (
            {"teams": {"recorded": ["ader"]}},
            r"pool\.teams\.recorded: unknown worker 'ader'\. Choose from: adder, speller",
        ),
    ],
)
def test_a_team_or_cards_for_unknown_sources_are_an_error(tmp_path: Path, pool: dict[str, Any], message: str):
    name = write_recording(tmp_path)
    also = {"train": f"{name}?part=train", "held_out": f"{name}?part=test", "share": 0.5}
    run_config = config(tmp_path, questions={"also": [also]})
    TrainingRun(with_pool(run_config, teams={"skills": ["adder"]}), RunDir(tmp_path)).check()
    named = json.loads(json.dumps(pool).replace("SET", name))
    with pytest.raises(SettingsError, match=message):
        check(tmp_path, with_pool(run_config, **named))


def test_a_pool_may_set_no_team_for_requests(tmp_path: Path):
    run_config = config(tmp_path, questions={"source": "requests", "families": None})
    with pytest.raises(SettingsError, match=r"pool\.teams\.requests: .* Sources: none"):
        check(tmp_path, with_pool(run_config, teams={"requests": ["adder"]}))
