"""The whole training loop, from a poor start to well above the best fixed worker. `make train-tiny` runs it longer,
with three seeds.
"""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT
from tests.states import until


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_a_tiny_conductor_learns_routing_and_access_lists(tmp_path: Path):
    config = (ROOT / "training/configs/tiny.yaml").read_text("utf-8")
    assert "\n  steps: 50\n" in config
    (tmp_path / "tiny.yaml").write_text(config.replace("steps: 50", "steps: 30"))
    options = ["--config", str(tmp_path / "tiny.yaml"), "--seeds", "0", "--out", str(tmp_path)]
    command = [sys.executable, "-m", "training.tiny", *options]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=1350)
    assert ended.returncode == 0, ended.stdout[-2000:]
    results = json.loads((tmp_path / "train-tiny.json").read_text("utf-8"))
    assert results["before"] < results["best_fixed_worker"] + 0.1
    assert results["after"] > results["best_fixed_worker"] + 0.4
    assert results["composite_after"] > results["composite_before"] + 0.4


@pytest.mark.slow
async def test_interrupting_the_process_ends_its_trainings(tmp_path: Path):
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "training.tiny", "--out", str(tmp_path), stdout=asyncio.subprocess.PIPE
    )
    process = psutil.Process(running.pid)
    await until(lambda: len(process.children()) == 2, "two trainings", every_s=0.05)
    trainings = process.children()
    running.send_signal(signal.SIGINT)
    output, _ = await asyncio.wait_for(running.communicate(), 60)
    assert running.returncode == 130
    assert output.endswith(b"Stopped. No results were written.\n")
    assert not any(each.is_running() for each in trainings)
