"""A small sample of `make fuzz-policy`."""

from collections import Counter

from tests.serving.fuzz_policy import WORD, Case, Violations, fuzz, try_case


def test_no_request_plan_or_conductor_violates_a_policy() -> None:
    tried, violations, outcomes = fuzz(60)
    assert not violations
    assert tried >= 50
    assert outcomes["calls"] > tried / 3


async def test_no_text_of_a_run_that_its_policy_now_forbids_stays() -> None:
    plan = '{"worker": "w0", "subtask": "", "access": []}\n{"worker": "w1", "subtask": "", "access": [0]}'
    workers = [
        {"name": "boss", "kind": "scripted", "in_pool": False, "replies": [plan]},
        *({"name": name, "kind": "scripted", "replies": [WORD]} for name in ("w0", "w1")),
    ]
    settings = {"conductor": {"worker": "boss"}, "workers": workers, "models": {"mini": {}}}
    body = {"model": "mini", "messages": [{"role": "user", "content": WORD}]}
    violations, outcomes = Violations(), Counter[str]()
    await try_case(
        Case(settings, {}, {}, body, {"store_content": False, "workers": ["w1"]}), violations, outcomes
    )
    assert (outcomes["continued"], dict(violations)) == (1, {})
