"""`make train-conductor DATA=FILE` copies the recorded pool to the path that the recipes read."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT


def copy_data(folder: Path, data: str) -> None:
    """Run only the target's line that copies `data`, in `folder`."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL")
    }
    command = ["make", "-n", "--no-print-directory", "train-conductor", f"DATA={data}"]
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    (line,) = (line for line in process.stdout.splitlines() if line.startswith("mkdir"))
    subprocess.run(line, shell=True, cwd=folder, check=True)


@pytest.mark.parametrize("name", ["recorded.jsonl.gz", "my friend's pool.gz"])
def test_a_recorded_pool_is_copied_to_the_recipes_path(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("answers")
    copy_data(tmp_path, name)
    assert (tmp_path / "build" / "recorded.jsonl.gz").read_text() == "answers"


def test_an_existing_recorded_pool_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build" / "recorded.jsonl.gz").write_text("answers")
    copy_data(tmp_path, "build/recorded.jsonl.gz")
    assert (tmp_path / "build" / "recorded.jsonl.gz").read_text() == "answers"
