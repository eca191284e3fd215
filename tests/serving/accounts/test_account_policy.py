"""Account policies: joining them only restricts, in any order."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from conductor.model.terms import EFFORTS, Permit, lowest_effort
from serving.accounts.account_policy import ANY_POLICY, AccountPolicy, Policies, permit_of
from serving.dispatch.model_parameters import limit_effort
from serving.settings.model_access import overlay
from serving.settings.settings import parse
from tests.serving.api.served import scripted, team

NAMES = st.frozensets(st.sampled_from("abcd"), max_size=4)
AMOUNTS = st.decimals("0.01", "9", places=2)
policies = st.builds(
    AccountPolicy,
    models=st.none() | NAMES,
    workers=st.none() | NAMES,
    exclude_workers=NAMES,
    providers=st.none() | NAMES,
    regions=st.none() | NAMES,
    local_only=st.booleans(),
    max_steps=st.none() | st.integers(1, 9),
    tools=st.none() | NAMES,
    max_effort=st.none() | st.sampled_from(EFFORTS),
    max_cost_usd=st.none() | AMOUNTS,
    store_content=st.booleans(),
    content_days=st.none() | st.floats(0.5, 9),
    redact_personal_data=st.booleans(),
)
settings = parse(
    team(
        workers=[
            scripted("a", provider="a", region="b"),
            scripted("b", local=False),
            scripted("c", region="c"),
            scripted("d", provider="d", local=False),
        ],
        workflows={},
    )
)


@given(policies, policies, policies)
def test_joining_policies_does_not_depend_on_their_order(one: AccountPolicy, two: AccountPolicy, three: AccountPolicy) -> None:  # fmt: skip
    assert one.narrow(two) == two.narrow(one)
    assert one.narrow(two).narrow(three) == one.narrow(two.narrow(three))
    assert one.narrow(one) == one == one.narrow(ANY_POLICY)


@given(policies, policies)
def test_a_joined_policy_permits_nothing_that_one_forbids(one: AccountPolicy, two: AccountPolicy) -> None:
    both, permit = one.narrow(two), permit_of(Policies(one, two), settings)
    for worker in settings.workers:
        allowed = one.allows_worker(worker) and two.allows_worker(worker)
        assert both.allows_worker(worker) == permit.allows(worker.name) == allowed
    for name in "abcde":
        assert both.allows_model(name) == (one.allows_model(name) and two.allows_model(name))
        assert both.allows_tool(name) == (one.allows_tool(name) and two.allows_tool(name))
    assert permit.stores == (one.store_content and two.store_content)


@given(policies)
def test_a_policy_round_trips(policy: AccountPolicy) -> None:
    assert AccountPolicy.model_validate(policy.stated()) == policy
    assert overlay(ANY_POLICY, policy) == policy
    assert overlay(policy, AccountPolicy()) == policy


names = st.none() | st.lists(st.sampled_from("abc"), unique=True).map(tuple)
permits = st.builds(Permit, names, st.none() | st.sampled_from(EFFORTS), st.booleans(), st.booleans(), st.booleans(), st.booleans())  # fmt: skip


@given(permits, permits)
def test_a_joined_permit_allows_what_both_allow(one: Permit, two: Permit) -> None:
    both = one.narrow(two)
    assert all(both.allows(name) == (one.allows(name) and two.allows(name)) for name in "abcd")
    assert both.max_effort == lowest_effort(one.max_effort, two.max_effort)
    assert (both.stores, both.hides_personal_data) == (one.stores and two.stores, one.hides_personal_data or two.hides_personal_data)  # fmt: skip


@pytest.mark.parametrize(
    ("effort", "most", "default", "sent"),
    [
        ("high", "low", "none", "low"),
        ("minimal", "low", "none", "minimal"),
        (None, "low", "medium", "low"),  # the model's default effort is above the limit
        (None, "high", "medium", None),
        (None, "none", "none", None),
        ("ultra", "max", "none", "max"),  # not a level
    ],
)
def test_a_policy_limits_the_reasoning_effort(effort: str | None, most: str, default: str, sent: str | None) -> None:  # fmt: skip
    assert limit_effort(effort, most, default) == sent


@pytest.mark.parametrize(
    "wrong",
    [
        {"model": ["a"]},
        {"max_steps": 0},
        {"max_cost_usd": 0},
        {"max_effort": "huge"},
        {"content_days": 0},
        {"workers": [""]},
    ],
)
def test_an_invalid_policy_is_rejected(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(wrong))):
        AccountPolicy.model_validate(wrong)


def test_amounts_in_a_policy_are_exact() -> None:
    assert AccountPolicy.model_validate_json('{"max_cost_usd": "0.10"}').max_cost_usd == Decimal("0.10")


def test_a_worker_is_allowed_only_if_all_its_deployments_are() -> None:
    here = {"name": "here", "base_url": "http://127.0.0.1:1/v1", "region": "eu"}
    there = {"name": "there", "base_url": "https://api.example.com/v1", "region": "us", "provider": "p"}
    gpt = {"name": "gpt", "kind": "openai", "model": "gpt-5"}

    def allows(policy: AccountPolicy, *places: dict[str, Any], **more: object) -> bool:
        (worker,) = parse({"workers": [gpt | more | {"deployments": list(places)}]}).workers
        return policy.allows_worker(worker)

    local, europe = AccountPolicy(local_only=True), AccountPolicy(regions=frozenset({"eu"}))
    ours = AccountPolicy(providers=frozenset({"openai"}))
    for policy in (local, europe, ours):
        assert allows(policy, here)
        assert not allows(policy, here, there)
    assert not allows(local, there, local=True), "what is said of the worker does not hold elsewhere"
    unsaid = {"name": "there", "base_url": "https://api.example.com/v1"}
    assert not allows(europe, unsaid, region="eu")
    assert allows(local, {**there, "local": True})
