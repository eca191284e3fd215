"""The verdict of the siege, and its attacks. Nothing is attacked here: tests/live/proxies/test_edge.py does."""

from dataclasses import replace

import pytest

from loadtest.siege.attack import EXTRA_KINDS, KINDS
from loadtest.siege.cli import NO_ATTACK, cases
from loadtest.siege.watch import SiegeResult
from program.process import allow_open_files

HELD = SiegeResult(streams=20, whole=20, asked=30, answered=30, slowest_gap_s=0.2, health_p99_s=0.1)


@pytest.mark.parametrize(
    "missed",
    [
        {"whole": 19},
        {"answered": 29},
        {"asked": 0, "answered": 0},
        {"slowest_gap_s": 1.0},
        {"health_p99_s": 0.5},
    ],
)
def test_one_missed_bound_is_enough(missed: dict[str, float]) -> None:
    assert HELD.withstood
    assert not replace(HELD, **missed).withstood


def test_every_attack_comes_on_both_paths_from_one_address_and_from_several() -> None:
    made = [(case.path, case.kind, case.addresses) for case in cases([])]
    for path in ("default", "fast"):
        assert made.count((path, NO_ATTACK, 1)) == 1
        for kind in KINDS:
            assert [addresses for each, of, addresses in made if (each, of) == (path, kind)] == [1, 8]
    assert not [kind for _, kind, _ in made if kind in EXTRA_KINDS]
    assert {(case.path, case.kind) for case in cases(["fast:large_unfinished"])} == {
        ("fast", "large_unfinished")
    }


def test_too_few_files_are_told_with_the_remedy() -> None:
    with pytest.raises(SystemExit, match="ulimit -H -n"):
        allow_open_files(10**12)
