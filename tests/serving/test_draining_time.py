"""Time that a router gets to drain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.deployments.draining import leaves_after_s, timeout_s


@given(st.floats(0.01, 10_000))
def test_a_router_has_one_to_ten_seconds_left_after_its_drain_time(
    drain_s: float,
) -> None:
    given_s = timeout_s(drain_s)
    assert leaves_after_s(given_s) == pytest.approx(drain_s)
    assert 0.999 <= given_s - drain_s <= 10.001
