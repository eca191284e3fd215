"""Decisions to keep a conversation on its worker, from prices, tokens and counts, without a run."""

from dataclasses import replace
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.terms import Callee
from conductor.model.usage import FREE, LongPromptRates, Price, Usage
from conductor.plan.plan import Plan, Step
from conductor.run.call_bound import sent_bytes
from conductor.run.follow_up import (
    Agreement,
    FollowUp,
    Pool,
    cost_usd,
    course,
    describe,
    gain_usd,
    likely_prompt,
    lost_usd,
    may_switch,
    why_kept,
)
from tests.conductor.prices import prices
from tests.conductor.team import Player, member


def price(fresh: str, cached: str, write: str, output: str) -> Price:
    return Price(Decimal(fresh), Decimal(output), Decimal(cached), Decimal(write))


PRICES = {
    "sonnet": price("3", ".3", "3.75", "15"),
    "opus": price("5", ".5", "6.25", "25"),
    "haiku": price("1", ".1", "1.25", "5"),
    "gpt-5": price("1.25", ".125", "1.25", "10"),
    "local": FREE,
    "unknown": None,
}
POOL: Pool = {name: member(Player(name, price=each)) for name, each in PRICES.items()}


def follow(worker: str = "sonnet", cached: int = 5_000, **facts: object) -> FollowUp:
    """Return a turn of 500 new tokens after three other turns."""
    usual = FollowUp(
        worker,
        prompt_tokens=cached + 500,
        cached_tokens={worker: cached},
        answer_tokens=500,
        turns=3,
        is_tool_loop=False,
        stickiness=1.0,
        usd_per_s=Decimal("0.01"),
        why_ask="",
        agreement=Agreement(),
    )
    return replace(usual, **facts)  # type: ignore[arg-type]


def alone(*workers: str) -> Plan:
    return Plan(tuple(Step(worker, "") for worker in workers))


def pool(*names: str) -> Pool:
    return {name: POOL[name] for name in names}


@pytest.mark.parametrize(
    ("worker", "other", "cached", "lost", "gain", "switches"),
    [
        ("sonnet", "gpt-5", 5_000, "0.00475", "0.0212625", True),
        ("sonnet", "opus", 5_000, "0.02975", "0.010875", False),
        ("sonnet", "opus", 1_500, "0.008925", "0.009825", True),
        ("sonnet", "haiku", 50_000, "0.0475", "0.069675", True),
        ("gpt-5", "sonnet", 20_000, "0.0725", "0.008125", False),
    ],
)
def test_a_switch_must_gain_more_than_the_lost_cache(
    worker: str, other: str, cached: int, lost: str, gain: str, switches: bool
) -> None:
    turn = follow(worker, cached)
    assert lost_usd(alone(other), POOL, turn) == Decimal(lost)
    assert gain_usd(alone(other), POOL, turn) == Decimal(gain)
    assert may_switch(alone(other), POOL, turn) == switches
    assert may_switch(alone(other), POOL, replace(turn, stickiness=0.0)), "the conductor alone decides"
    assert not may_switch(alone(other), POOL, replace(turn, stickiness=float("inf")))


def test_a_turn_costs_its_cached_tokens_new_tokens_and_answer() -> None:
    assert cost_usd("sonnet", POOL, follow()) == Decimal("0.010875")
    assert cost_usd("gpt-5", POOL, follow()) == Decimal("0.011875")
    assert cost_usd("unknown", POOL, follow()) is None
    tiers = LongPromptRates(Decimal(6), Decimal(30), Decimal(1), Decimal(8), above_input_tokens=200_000)
    long = {"sonnet": member(Player("sonnet", price=replace(PRICES["sonnet"], long_prompts=(tiers,))))}  # type: ignore[type-var]
    assert cost_usd("sonnet", long, follow(cached=300_000)) == Decimal("0.319")


def test_a_plans_loss_is_the_uncached_input_of_other_workers() -> None:
    turn = follow()
    losses = [lost_usd(alone(name), POOL, turn) or 0 for name in ("haiku", "opus")]
    assert lost_usd(alone("haiku", "sonnet", "opus", "haiku"), POOL, turn) == sum(losses)
    assert gain_usd(alone("opus", "haiku"), POOL, turn) == gain_usd(alone("haiku"), POOL, turn)
    assert lost_usd(alone("sonnet", "sonnet"), POOL, turn) == 0
    assert may_switch(alone("sonnet", "sonnet"), POOL, replace(turn, stickiness=float("inf")))


def test_a_gain_is_expected_for_at_most_ten_more_turns() -> None:
    gains = [gain_usd(alone("haiku"), POOL, follow(turns=turns)) or 0 for turns in (0, 1, 10, 99)]
    assert gains[0] == cost_usd("sonnet", POOL, follow())
    assert gains[3] == gains[2] == gains[0] + 10 * (gains[1] - gains[0])


def test_a_switch_is_free_without_a_cache_or_a_price() -> None:
    compacted = follow(cached_tokens={})
    assert may_switch(alone("opus"), POOL, compacted)
    assert may_switch(alone("opus"), POOL, follow(cached_tokens={"sonnet": 5_000, "opus": 5_000}))
    assert may_switch(alone("unknown"), POOL, follow())
    assert may_switch(alone("opus"), POOL, follow("unknown"))
    assert may_switch(alone("opus"), POOL, follow("local", cached_tokens={"local": 0}))
    assert may_switch(alone("local"), POOL, follow(cached=1_000_000)), "a free worker reads for nothing"


def test_cached_tokens_are_at_most_the_prompts_tokens() -> None:
    assert lost_usd(alone("opus"), POOL, follow(prompt_tokens=100)) == Decimal("0.000595")


def test_the_reason_names_the_workers_and_both_amounts() -> None:
    turn = follow("gpt-5", 20_000)
    assert why_kept(alone("gpt-5"), POOL, turn) == "The conductor chose the worker of the last answer again."
    assert why_kept(alone("sonnet"), POOL, turn) == "The plan names sonnet, but reading this conversation again would cost $0.0725, and the expected gain is $0.0081."  # fmt: skip
    assert why_kept(alone("sonnet", "opus"), POOL, turn).startswith("The plan names sonnet and opus, but ")
    assert not why_kept(alone("haiku"), POOL, replace(turn, stickiness=0.0))
    assert not why_kept(Plan((Step("gpt-5", "Shorten it."),)), POOL, turn), "a plan of the same worker runs"


COURSES = {
    "tools": (follow(is_tool_loop=True), {}, "stay"),
    "too long for the conductor": (follow(), {"fits_conductor": False}, "stay"),
    "nobody else is worth it": (follow("gpt-5", 20_000), {"others": ("sonnet", "opus")}, "stay"),
    "somebody else is": (follow("gpt-5", 20_000), {"others": ("sonnet", "local")}, "speculate"),
    "there is nobody else": (follow("gpt-5", 20_000), {"others": ()}, "speculate"),
    "cheap": (follow(cached=20_000), {"others": ("local",)}, "speculate"),
    "dear": (follow(cached=150_000), {"others": ("local",)}, "ask"),
    "limited": (follow(), {"has_limits": True}, "ask"),
    "on one machine": (follow("local", cached_tokens={}, why_ask="One machine."), {}, "ask"),
    "free": (follow("local", cached_tokens={}), {}, "speculate"),
    "of unknown price": (follow("unknown"), {}, "ask"),
    "never": (follow(usd_per_s=None), {}, "ask"),
    "worth nothing": (follow(usd_per_s=Decimal(0)), {}, "ask"),
    "free and worth nothing": (follow("local", cached_tokens={}, usd_per_s=Decimal(0)), {}, "speculate"),
}


@pytest.mark.parametrize("name", COURSES)
def test_each_follow_up_turn_has_the_expected_course(name: str) -> None:
    turn, facts, expected = COURSES[name]
    members = pool(turn.worker, *facts.get("others", ("haiku", "local")))  # type: ignore[misc]
    has_limits, fits = facts.get("has_limits", False), facts.get("fits_conductor", True)
    actual, why = course(members, turn, has_limits=bool(has_limits), fits_conductor=bool(fits))
    assert actual == expected
    assert why


def test_an_early_call_starts_if_its_expected_loss_is_below_the_times_value() -> None:
    members = pool("sonnet", "local")
    # With 5,000 cached, 500 new and 40 answer tokens, 0.4 s costs $0.003975.
    even = Decimal("0.003975") / 10 / Decimal("0.4")
    for usd_per_s, expected in ((even * 2, "speculate"), (even / 2, "ask")):
        turn = follow(usd_per_s=usd_per_s)
        assert course(members, turn, has_limits=False, fits_conductor=True)[0] == expected


LONG = Call((Message.of("user", "x" * 99_999),))


def test_a_prompts_cached_tokens_come_from_what_the_worker_reported() -> None:
    usage = Usage(5_500, cached_input_tokens=5_000, cache_write_tokens=500)
    assert likely_prompt(follow(), LONG, Callee("sonnet")) == usage
    for unknown in (None, follow(cached_tokens={}), follow(cached_tokens={"opus": 5_000})):
        bytes_halved = Usage(-(-sent_bytes(LONG) // 2))
        assert likely_prompt(unknown, LONG, Callee("sonnet")) == bytes_halved, "a token per two bytes"
    sonnet = POOL["sonnet"].price
    assert sonnet is not None
    assert sonnet.of(usage) == Decimal("0.003375")


@pytest.mark.parametrize("callee", [Callee("sonnet", "us"), Callee("sonnet"), Callee("opus", "eu")])
def test_another_deployment_or_worker_has_no_cached_prompt(callee: Callee) -> None:
    turn = follow(deployment="eu")
    assert likely_prompt(turn, LONG, Callee("sonnet", "eu")).cached_input_tokens == 5_000
    assert likely_prompt(turn, LONG, callee) == Usage(5_500, cache_write_tokens=5_500)


def test_a_likely_prompt_includes_the_part_of_the_answer_that_it_continues() -> None:
    call = Call(LONG.messages, prefix="x" * 99)
    usage = Usage(5_550, cached_input_tokens=5_000, cache_write_tokens=550)
    assert likely_prompt(follow(), call, Callee("sonnet")) == usage


def test_a_one_hour_cache_is_written_at_its_own_price() -> None:
    sonnet = Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal(6))
    members = {
        "sonnet": member(Player("sonnet", price=sonnet)),
        "opus": POOL["opus"],
        "haiku": member(Player("haiku", price=sonnet)),
    }
    turn, hour = follow(), follow(writes_hour=True)
    assert lost_usd(alone("haiku"), members, turn) == 5_000 * Decimal("3.45") / 10**6
    assert lost_usd(alone("haiku"), members, hour) == 5_000 * Decimal("5.7") / 10**6
    assert lost_usd(alone("opus"), members, hour) == lost_usd(alone("opus"), members, turn), (
        "it has one price"
    )
    more = (cost_usd("sonnet", members, hour) or 0) - (cost_usd("sonnet", members, turn) or 0)
    assert more == 500 * Decimal("2.25") / 10**6
    likely = likely_prompt(hour, LONG, Callee("sonnet"))
    assert sonnet.of(likely) == 5_000 * Decimal("0.3") / 10**6 + 500 * Decimal(6) / 10**6


def test_older_decisions_have_less_weight() -> None:
    agreement = Agreement()
    assert agreement.share_differing == pytest.approx(0.1)
    for _ in range(200):
        agreement.note(agrees=False, plan_s=2.0)
    assert agreement.share_differing > 0.99
    assert agreement.plan_s == pytest.approx(2.0)
    for _ in range(200):
        agreement.note(agrees=True, plan_s=0.1)
    assert agreement.share_differing < 0.05


def test_the_conductors_prompt_states_cached_tokens_and_their_value_per_worker() -> None:
    members = pool("haiku", "gpt-5", "sonnet", "local", "unknown")
    turn = follow(cached=4_120)
    assert describe(members, turn) == "Worker 2 gave the last answer. Worker 2 has 4,120 tokens of this conversation in its cache, worth $0.0111. Another worker would have to read them again."  # fmt: skip
    both = replace(turn, cached_tokens={"sonnet": 4_120, "gpt-5": 2_000, "local": 9_000, "unknown": 9_000})
    assert "Worker 1 has 2,000 tokens" in describe(members, both)
    assert "Worker 3" not in describe(members, both)


@pytest.mark.parametrize(
    "turn",
    [
        follow(cached_tokens={}),
        follow(cached=10),
        follow("local"),
        follow("unknown"),
        follow("opus"),
    ],
    ids=["nothing cached", "too little", "free", "unknown price", "not in the pool"],
)
def test_the_conductors_prompt_omits_caches_without_value(turn: FollowUp) -> None:
    assert describe(pool("haiku", "sonnet", "local", "unknown"), turn) == ""


turns_of_any_kind = st.builds(
    FollowUp,
    worker=st.just("a"),
    prompt_tokens=st.integers(0, 10**6),
    cached_tokens=st.dictionaries(st.sampled_from("abc"), st.integers(0, 10**6)),
    answer_tokens=st.integers(0, 10**5),
    turns=st.integers(0, 100),
    is_tool_loop=st.just(False),
    stickiness=st.floats(0, 100),
    usd_per_s=st.none() | st.just(Decimal("0.01")),
    why_ask=st.sampled_from(["", "The worker is busy."]),
    agreement=st.just(Agreement()),
)
pools_of_any_price = st.fixed_dictionaries(
    {name: (prices | st.none()).map(lambda each: member(Player("x", price=each))) for name in "abc"}
)


@given(pools_of_any_price, turns_of_any_kind, st.lists(st.sampled_from("abc"), min_size=1, max_size=4), st.floats(0, 100))  # fmt: skip
def test_losses_are_not_negative_and_more_stickiness_permits_fewer_switches(
    members: Pool, turn: FollowUp, workers: list[str], more: float
) -> None:
    plan = alone(*workers)
    lost, gain = lost_usd(plan, members, turn), gain_usd(plan, members, turn)
    assert lost is None or lost >= 0
    assert gain is None or gain >= 0
    stickier = replace(turn, stickiness=turn.stickiness + more)
    assert may_switch(plan, members, turn) or not may_switch(plan, members, stickier)
    course(members, turn, has_limits=False, fits_conductor=True)
    describe(members, turn)
