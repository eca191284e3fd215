import asyncio

import pytest

from serving.settings.settings import SettingsError
from tests.serving.api.served import plan, scripted, step
from tests.training.pools import (
    EOS,
    NO_PLAN,
    PRICE,
    RIGHT,
    WRONG,
    question,
    reward,
    rewards,
    runner,
    settings,
)
from training.caching_worker import CallCache
from training.plan_runner import PlanRunner, training_pool
from training.trl_reward import PlanReward

DOWN = {"error": "unavailable"}


async def test_an_invalid_plan_scores_0_a_wrong_answer_half_and_a_right_one_1():
    assert await rewards(reward(), NO_PLAN, WRONG, RIGHT) == [0.0, 0.5, 1.0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        plan(step(2)),  # no worker has that number
        plan(step(0), step(0), step(0)),  # more steps than allowed
        plan(step(0, access=[0])),
        RIGHT + " and so on",
        "Here it is: " + RIGHT,
        RIGHT + "\nor\n" + RIGHT,
        RIGHT[:-1],
        '{"accept": true}',
        "[1]",
    ],
)
async def test_an_invalid_plan_or_additional_text_scores_0(text: str):
    assert await rewards(reward(), text) == [0.0]


async def test_whitespace_around_a_plan_is_permitted():
    assert await rewards(reward(), f"\n{RIGHT} \n") == [1.0]


async def test_a_truncated_text_scores_0_even_if_it_contains_a_plan():
    assert await rewards(reward(), RIGHT, ids=[1, 2]) == [0.0]
    assert await rewards(reward(), plan(step(0), step(0)), ids=[1, 2]) == [0.0]
    assert await rewards(reward(), plan(step(0), step(0)), ids=[1, EOS]) == [1.0]


@pytest.mark.parametrize(
    ("text", "worth"),
    [
        ('Ask one.\nmodel_id = [0]\nsubtasks = ["Go."]\naccess_list = [[]]', 1.0),
        ('Ask one.\nmodel_id = [0]\nsubtasks = ["Go."]\naccess_list = [[]]\nDone.', 0.0),
        ('model_id = [0, 1]\nsubtasks = ["Go."]\naccess_list = [[]]', 0.0),
    ],
)
async def test_lists_may_start_with_reasoning_and_must_end_with_the_last_list(text: str, worth: float):
    assert await rewards(reward(runner(format="lists")), text) == [worth]


async def test_an_outage_gives_no_reward_and_a_refusal_counts_as_a_wrong_answer():
    retry = {"attempts": 1}
    down, refuses = scripted("a", DOWN, retry=retry), scripted("b", {"error": "refused"}, retry=retry)
    scorer = reward(runner(down, refuses))
    assert await rewards(scorer, plan(step(0)), plan(step(1)), NO_PLAN) == [None, 0.5, 0.0]


async def test_only_an_outage_in_a_needed_step_gives_no_reward():
    scorer = reward(runner(scripted("a", DOWN, retry={"attempts": 1}), scripted("b", "42")))
    both = plan(step(0), step(1, access=[0]))
    apart = plan(step(0), step(1))
    assert await rewards(scorer, both, apart) == [None, 1.0]


async def test_costs_reduce_only_the_reward_of_right_answers():
    record = (await reward(usd_weight=0.0).score(0, [RIGHT])).record
    cost = float(record.cost_usd or 0)
    assert cost > 0
    assert await rewards(reward(usd_weight=0.1 / cost), NO_PLAN, WRONG, RIGHT) == pytest.approx(
        [0.0, 0.5, 0.9]
    )
    assert await rewards(reward(usd_weight=9 / cost), RIGHT) == [0.5]


async def test_worker_numbers_follow_the_questions_order():
    assert await rewards(reward(workers=("b", "a")), RIGHT, WRONG) == [0.5, 1.0]
    assert await rewards(reward(workers=("a",)), plan(step(1))) == [0.0]


async def test_equal_calls_are_made_once_and_failures_are_not_cached():
    cache = CallCache()
    pool = training_pool(
        settings(
            scripted("a", "42", {"error": "unavailable"}, "41", retry={"attempts": 1}), scripted("b", "x")
        ),
        {},
    )
    scorer = reward(lambda: PlanRunner(pool, "m", cache))
    assert await rewards(scorer, *[RIGHT] * 8) == [1.0] * 8
    wire = next(wire for wire in pool.clients if wire.name == "a")
    assert len(wire.calls) == 1  # type: ignore[attr-defined]
    other = plan(step(0, "Something else."))
    assert await rewards(scorer, other) == [None]
    assert await rewards(scorer, other) == [0.5]


async def test_a_cancelled_caller_does_not_cancel_a_shared_call():
    cache = CallCache()
    scorer = reward(runner(scripted("a", "42", delay_s=0.2), scripted("b", "x"), cache=cache))
    first = asyncio.create_task(rewards(scorer, RIGHT))
    await asyncio.sleep(0.05)
    second = asyncio.create_task(rewards(scorer, RIGHT))
    await asyncio.sleep(0.05)
    first.cancel()
    assert await second == [1.0]


async def test_the_number_of_concurrent_runs_is_limited():
    pool = training_pool(settings(scripted("a", "42", delay_s=0.02), scripted("b", "x")), {})
    most = 0
    scorer = reward(lambda: PlanRunner(pool, "m"), concurrency=3)
    task = asyncio.create_task(rewards(scorer, *[plan(step(0, f"Part {n}.")) for n in range(12)]))
    while not task.done():
        most = max(most, pool.limiters["a"].open_calls)
        await asyncio.sleep(0.002)
    assert task.result() == [1.0] * 12
    assert most == 3


async def test_rewards_are_logged_for_the_curves():
    metrics: dict[str, float] = {}
    await rewards(reward(), NO_PLAN, WRONG, RIGHT, RIGHT, row=[0, 0, 1, 1], log_metric=metrics.__setitem__)
    assert metrics.pop("plan/tokens") > 0
    assert metrics.pop("plan/cost_usd") > 0
    assert metrics == {
        "plan/parsed": 0.75,
        "plan/right": 0.5,
        "plan/outages": 0.0,
        "plan/groups_without_signal": 0.5,
        "plan/steps": 1.0,
        "plan/reads": 0.0,
        "workers/a": pytest.approx(2 / 3),
        "workers/b": pytest.approx(1 / 3),
    }


def test_an_unusable_pool_is_an_error_with_the_remedy():
    from serving.settings.settings import parse

    vllm = {"name": "v", "kind": "vllm", "model": "some/model"}
    with pytest.raises(SettingsError, match="kind openai with its base_url"):
        training_pool(settings(vllm), {})
    with pytest.raises(SettingsError, match="Set `conductor`"):
        training_pool(parse({"workers": [scripted("a")]}), {})
    with pytest.raises(SettingsError, match=r"no model 'n'\. Available models: m"):
        PlanRunner(training_pool(settings(), {}), "n")


def test_any_conductor_can_be_replaced_and_keeps_price_and_limits():
    data = {
        "conductor": {"worker": "v"},
        "workers": [
            {
                "name": "v",
                "kind": "vllm",
                "model": "some/model",
                "in_pool": False,
                "price": PRICE,
                "max_output_tokens": 77,
            },
            scripted("a"),
        ],
    }
    from serving.settings.settings import parse

    member = training_pool(parse(data), {}).members["v"]
    assert member.max_output_tokens == 77
    assert member.price is not None
    assert member.price.output_usd_per_mtok == 2


def test_trl_accepts_the_reward_as_an_async_function():
    from trl.trainer.utils import is_async_callable

    assert is_async_callable(reward())
    assert isinstance(reward(), PlanReward)
    assert question().grader == "exact"
