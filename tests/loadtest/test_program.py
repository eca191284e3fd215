"""What the four programs share, and what their `--help` does not import."""

import argparse
import subprocess
import sys

import pytest

from loadtest.percentile import percentile
from loadtest.program import option, positive_int, rate, rates, url

HEAVY = ("ray", "torch", "vllm", "matplotlib", "locust")
HELP = """
import importlib, sys
try:
    importlib.import_module(sys.argv[1]).main(["--help"])
finally:
    assert not {*sys.argv[2:]} & {*sys.modules}, {*sys.argv[2:]} & {*sys.modules}
"""


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("bench.cli", "bench"),
        ("loadtest.cli", "load"),
        ("loadtest.siege.cli", "siege"),
        ("capacity.cli", "capacity"),
    ],
)
def test_help_names_the_program_and_imports_nothing_heavy(module: str, name: str) -> None:
    command = [sys.executable, "-c", HELP, module, *HEAVY]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: podium {name} ")


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (positive_int, "0", "'0' is not a whole number from 1 on"),
        (positive_int, "few", "'few' is not a whole number"),
        (rate, "nan", "'nan' is not a rate"),
        (rate, "-1", "'-1' is not a rate"),
        (rate, "inf", "'inf' is not a rate"),
        (rates, "10,,20", "'' is not a rate"),
        (url, "podium.example", "write http://podium.example"),
    ],
)
def test_a_wrong_option_says_what_is_right(parse: object, text: str, why: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=why):
        option(parse)(text)  # type: ignore[arg-type]


def test_options_are_read() -> None:
    assert (positive_int("12"), rate("0.5"), rates("10,1000")) == (12, 0.5, [10, 1000])
    assert url("http://podium.example/") == "http://podium.example"


def test_percentiles_are_by_nearest_rank() -> None:
    assert [percentile(range(1, 101), percent) for percent in (1, 50, 95, 99, 100)] == [1, 50, 95, 99, 100]
    assert percentile([3, 1, 2], 95) == 3
    assert percentile([], 50) != percentile([], 50), "not a number"
