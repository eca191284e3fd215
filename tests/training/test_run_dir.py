"""Folder of a run: its inputs, and that a run is not resumed with other ones."""

import json
import os
import stat
from pathlib import Path

import pytest

from serving.settings.settings import SettingsError
from tests.training.tiny_models import config
from training.config import Config
from training.run_dir import RunDir, digests


def lesson(folder: Path) -> Config:
    """Return a config that starts from an adapter, with cards from a recorded pool."""
    start = folder / "first" / "final"
    start.mkdir(parents=True)
    (start / "adapter_config.json").write_text("{}", "utf-8")
    (start / "adapter_model.safetensors").write_bytes(b"weights")
    (folder / "recorded.jsonl").write_text("{}", "utf-8")
    lora = {"rank": 16, "start": str(start)}
    run_config = config(folder, model={"scratch": None, "path": "some/model", "lora": lora})
    cards = {"recorded": f"recorded:{folder}/recorded.jsonl?part=train"}
    return run_config.model_copy(update={"pool": run_config.pool.model_copy(update={"cards": cards})})


@pytest.mark.parametrize(
    "name", ["recorded.jsonl", "first/final/adapter_config.json", "first/final/adapter_model.safetensors"]
)
def test_a_run_with_a_changed_start_or_cards_is_not_resumed(tmp_path: Path, name: str):
    run_config = lesson(tmp_path)
    RunDir.begin(tmp_path / "run", run_config, resume=False)
    RunDir.begin(tmp_path / "run", run_config, resume=True)
    (tmp_path / name).write_text("something else", "utf-8")
    with pytest.raises(SettingsError, match=rf"{name} has changed since"):
        RunDir.begin(tmp_path / "run", run_config, resume=True)


def test_an_older_run_is_resumed_by_the_inputs_that_it_recorded(tmp_path: Path):
    run_config = lesson(tmp_path)
    run_dir = RunDir.begin(tmp_path / "run", run_config, resume=False)
    run_dir.save("inputs", {run_config.pool.settings: digests(run_config)[run_config.pool.settings]})
    (tmp_path / "recorded.jsonl").write_text("something else", "utf-8")
    RunDir.begin(tmp_path / "run", run_config, resume=True)
    Path(run_config.pool.settings).write_text("something else", "utf-8")
    with pytest.raises(SettingsError, match=r"pool\.yaml has changed since"):
        RunDir.begin(tmp_path / "run", run_config, resume=True)


def test_a_missing_input_is_an_error_with_its_field(tmp_path: Path):
    run_config = lesson(tmp_path)
    (tmp_path / "first" / "final" / "adapter_model.safetensors").unlink()
    with pytest.raises(SettingsError, match=r"model\.lora\.start: .*first/final/.* cannot be read: No such"):
        RunDir.begin(tmp_path / "run", run_config, resume=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o644, 0o400])
def test_the_copied_pool_has_the_permissions_of_the_original(tmp_path: Path, mode: int):
    run_config = config(tmp_path)
    Path(run_config.pool.settings).chmod(mode)
    before = os.umask(0o022)
    try:
        run = RunDir.begin(tmp_path / "run", run_config, resume=False)
    finally:
        os.umask(before)
    assert stat.S_IMODE((run.path / "pool.yaml").stat().st_mode) == mode
    assert (run.path / "pool.yaml").read_bytes() == Path(run_config.pool.settings).read_bytes()
    assert json.loads((run.path / "inputs.json").read_text("utf-8")).keys() == {run_config.pool.settings}
