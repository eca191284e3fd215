"""Time that a router gets to drain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.deployments.draining import leaves_after_s, timeout_s


@given(st.floats(0.01, 10_000))
def test_a_router_leaves_its_runs_after_the_drain_time_and_has_a_second_to_ten_left_for_it(
    drain_s: float,
) -> None:
    given_s = timeout_s(drain_s)
    assert leaves_after_s(given_s) == pytest.approx(drain_s)
    assert 0.999 <= given_s - drain_s <= 10.001
