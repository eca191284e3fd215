"""Comparison of a turn through `podium-mini` with one sent to the worker's own server."""

import pytest

from loadtest.prove.first_token import FirstTokenTimes, course_of


def test_the_overhead_excludes_the_time_of_plan_and_worker() -> None:
    slow_plan, slow_worker = FirstTokenTimes(0.1, 0.5, 0.35), FirstTokenTimes(2.0, 2.4, 0.35)
    assert (slow_plan.over_direct, slow_worker.over_direct) == pytest.approx((5, 1.2))
    assert (slow_plan.overhead_s, slow_worker.overhead_s) == pytest.approx((0.05, 0.05))


def _plan(source: str, started_s: float, ended_s: float, *, accepted: bool = True) -> dict[str, object]:
    return {"source": source, "started_s": started_s, "ended_s": ended_s, "accepted": accepted}


def test_the_course_of_a_turn_is_derived_from_its_plans() -> None:
    conductor, refuted = _plan("conductor", 0, 0.4), _plan("conductor", 0, 0.4, accepted=False)
    early, late = _plan("conversation", 0.01, 2), _plan("conversation", 0.41, 2)
    courses = [
        course_of({"plans": plans})
        for plans in ([conductor], [early], [conductor, early], [refuted, early], [conductor, late])
    ]
    assert courses == [
        ("ask", False), ("stay", False), ("speculate", True), ("speculate", False), ("ask", False)
    ]  # fmt: skip
