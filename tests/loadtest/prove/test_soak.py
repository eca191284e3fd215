"""Soak of a few seconds. It shows each run, call, file, socket, task or span that requests leak."""

import math
from pathlib import Path

import pytest

from loadtest.prove.soak import growth, soak


@pytest.mark.slow
async def test_a_router_leaks_nothing_under_mixed_load(tmp_path: Path) -> None:
    result = await soak(tmp_path, lasts_s=6, rounds=4)
    assert result.faults(most_growth=math.inf) == [], (
        "memory says nothing yet: a fake keeps its newest 1,000 calls"
    )
    assert result.load.n > 50
    assert result.upstream_faults > 0


@pytest.mark.parametrize(
    ("series", "grew"),
    [
        ([100, 103, 97, 100] * 3, 1.0),
        ([100 + n for n in range(12)], 1.1),
        ([100] * 9 + [120] * 3, 1.2),
        ([0] * 12, 1.0),
    ],
)
def test_a_slope_or_a_step_counts_as_growth_but_noise_does_not(series: list[float], grew: float) -> None:
    assert growth(series) == pytest.approx(grew, abs=0.05)
