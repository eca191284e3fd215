"""What is reported of a turn through `podium-mini` beside one to the worker's own server."""

import pytest

from loadtest.prove.first_token import Turn


def test_what_is_added_is_neither_the_plan_s_time_nor_the_worker_s() -> None:
    slow_plan, slow_worker = Turn(0.1, 0.5, 0.35), Turn(2.0, 2.4, 0.35)
    assert (slow_plan.over_direct, slow_worker.over_direct) == pytest.approx((5, 1.2))
    assert (slow_plan.overhead_s, slow_worker.overhead_s) == pytest.approx((0.05, 0.05))
