"""The whole loop, once: from a poor start to well above the best fixed worker (issue 4, 1). `make train-tiny`
does it with three seeds, for longer.
"""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT


@pytest.mark.slow
@pytest.mark.timeout(1400)
def test_a_tiny_conductor_learns_whom_to_ask_and_who_has_to_read_whom(tmp_path: Path):
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


def test_an_interrupt_of_the_process_alone_ends_the_trainings_too(tmp_path: Path):
    command = [sys.executable, "-m", "training.tiny", "--out", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as running:
        ends_s = time.monotonic() + 60
        while len(trainings := psutil.Process(running.pid).children()) < 2 and time.monotonic() < ends_s:
            time.sleep(0.05)
        running.send_signal(signal.SIGINT)
        output, _ = running.communicate(timeout=60)
    assert (running.returncode, len(trainings)) == (130, 2)
    assert output.endswith("Stopped. No results were written.\n")
    assert not any(each.is_running() for each in trainings)
