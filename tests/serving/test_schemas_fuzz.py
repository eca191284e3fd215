"""A small sample of `make prove-schemas`."""

from tests.serving.fuzz_schemas import fuzz


def test_no_faulty_worker_returns_an_invalid_answer_as_a_success() -> None:
    tried, outcomes = fuzz(5)
    assert not outcomes.faults
    assert tried == 5
    assert outcomes.outcomes["HTTP 200, stop"] > 8
