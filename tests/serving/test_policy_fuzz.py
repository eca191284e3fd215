"""A small number of what `make fuzz-policy` tries by the thousand."""

from tests.serving.fuzz_policy import fuzz


def test_no_request_plan_worker_or_conductor_reaches_what_a_policy_forbids() -> None:
    tried, found, seen = fuzz(60)
    assert not found
    assert tried >= 50
    assert seen["calls"] > tried / 3
