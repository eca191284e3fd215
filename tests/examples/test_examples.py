"""Each example runs against a server as a user would run it, and prints what it promises."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"

SHOWN = {
    "batch.py": [
        r"completed: 2 of 2",
        r"france -> \S",
        r"peru -> \S",
    ],
    "chat.py": [
        r"answer: \S",
        r"step 0: \w\S* read \[\], done",
        r"cost: \$[\d.e-]+",
        r"workflow wf_\w+",
        r"tokens: \d+",
    ],
    "stream.py": [
        r"planned step 0: \w\S*: \S",
        r"step began: 0",
        r"step ended: 0",
        r"\n\S.*\ntokens: [1-9]\d*\n$",
    ],
    "limits.py": [
        r"max_steps.*\n  answered by \['[^',]+'\] for \$",
        r"exclude_workers.*\n  rejected: 4\d\d, podium\.\w*workers",
        r"'deadline'.*\n  rejected: 400, podium\.deadline: ",
    ],
    "own_plan.py": [
        r"(?s)(\d+\.\d+ to \d+\.\d+ s  .*?){3}",
        r"answer: \S",
        r"wall over critical path: \d+\.\d\d",
    ],
    "workflow_record.py": [
        r"wf_\w+: finished in \d",
        r"plan 0 by \w+, \d steps",
        r"step 0\.0: ",
        r"output:  \S",
        r"output_tokens",
    ],
}
"""Patterns that the output of each example must match."""


def run(name: str, url: str) -> str:
    """Run an example. Return its output, and require exit status 0 and an empty stderr."""
    environment = {**os.environ, "PODIUM_URL": url, "PYTHONWARNINGS": "error"}
    command = [sys.executable, str(EXAMPLES / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    return done.stdout


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == SHOWN.keys()


def test_examples_are_short() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert 15 <= len(path.read_text().splitlines()) <= 40, path.name


@pytest.mark.parametrize("name", SHOWN)
def test_an_example_prints_the_promised_output(name: str, scripted_url: str) -> None:
    printed = run(name, scripted_url)
    for pattern in SHOWN[name]:
        assert re.search(pattern, printed), f"no {pattern!r} in:\n{printed}"


def test_a_custom_plan_runs_its_steps_in_parallel(scripted_url: str) -> None:
    printed = run("own_plan.py", scripted_url)
    times = [
        (float(a), float(b)) for a, b in re.findall(r"^(\d+\.\d+) to (\d+\.\d+) s", printed, re.MULTILINE)
    ]
    (began_0, ended_0), (began_1, ended_1), (began_2, _) = times
    assert began_1 < ended_0
    assert began_0 < ended_1
    assert began_2 >= max(ended_0, ended_1) - 0.011, "times are shown to a hundredth"
