"""Whom plans ask is learned from records, for each name; and when that is enough to ask before the plan."""

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from conductor.errors import InvalidPlan, Reason
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record
from conductor.run.task import Task
from conductor.run.team_worker import TEAM
from serving.accounts.account_policy import AccountPolicy, Policies
from serving.layers.retry_budget import RESERVE
from serving.pool import build_pool
from serving.runs.guesses import Guesses
from serving.runs.plan_habits import NEWEST, PlanHabits
from serving.settings.settings import parse

NAMES = ("a", "b")


def record(
    *steps: tuple[str, str], model: str = "mini", workers: tuple[str, ...] = NAMES, **plan: Any
) -> Record:
    written = tuple(
        StepRecord(n, worker, subtask, (), 0.0, status="done") for n, (worker, subtask) in enumerate(steps)
    )
    facts = {"ended_s": 1.0, "source": "conductor"} | plan
    source = facts.pop("source")
    first = PlanRecord(0, 0, source, 0.0, "conductor", steps=written, **facts)
    return Record("wf", Task((Message.of("user", "hi"),), model=model), 0.0, workers, plans=(first,))


def test_the_worker_of_most_plans_of_one_step_in_the_user_s_words_is_the_likeliest() -> None:
    habits = PlanHabits()
    for _ in range(8):
        assert habits.count(record(("a", "")))
    assert habits.likeliest("mini", 9, 0.5) is None
    assert habits.likeliest("mini", 8, 1.0) == "a"
    habits.count(record(("a", "something")))
    habits.count(record(("a", ""), ("b", "sum up")))
    assert habits.likeliest("mini", 8, 0.8) == "a"
    assert habits.likeliest("mini", 8, 0.81) is None
    assert habits.likeliest("ultra", 1, 0.1) is None, "each name for itself"


def test_only_the_newest_plans_count() -> None:
    habits = PlanHabits()
    for worker in ("a", "b"):
        for _ in range(NEWEST):
            habits.count(record((worker, "")))
    assert habits.likeliest("mini", 1, 1.0) == "b"


@pytest.mark.parametrize("says_nothing", [
    record(("a", ""), source="client"),
    record(("a", ""), ended_s=None),
    record(("a", ""), stopped=True),
    record(("a", ""), cut=True),
    replace(record(("a", "")), plans=()),
    replace(record(("a", "")), task=Task((Message.of("user", "hi"),), model="mini", priority="batch")),
])  # fmt: skip
def test_a_run_whose_plan_nobody_wrote_to_its_end_or_could_have_guessed_says_nothing(
    says_nothing: Record,
) -> None:
    assert not PlanHabits().count(says_nothing)


def test_a_plan_that_cannot_run_asks_nobody() -> None:
    habits = PlanHabits()
    failure = Failure.of(InvalidPlan("no", reason=Reason.NO_PLAN))
    assert habits.count(record(("a", ""), rejection=failure))
    assert habits.count(record(failure=failure))
    assert habits.likeliest("mini", 1, 0.1) is None


def guesses(workers: dict[str, Any] | None = None, **own: Any) -> Guesses:
    """`workers`: what is said of them beside their names."""
    said = {"min_plans": 2, "min_agreement": 0.5} | own
    more = {name: {} for name in ("boss", *NAMES)} | (workers or {})
    kind = {"kind": "scripted", "max_concurrency": 8}
    made = [kind | {"name": name, "in_pool": name in NAMES} | facts for name, facts in more.items()]
    conductor = {"worker": "boss", "speculation": said}
    models = {"mini": {}, "ultra": {"workers": ["a"]}, "deep": {"depth": 1}}
    return Guesses(build_pool(parse({"conductor": conductor, "workers": made, "models": models}), {}, {}))


def test_without_the_section_no_team_guesses_and_nothing_is_learned() -> None:
    pool = build_pool(
        parse({"conductor": {"worker": "a"}, "workers": [{"name": "a", "kind": "scripted"}]}), {}, {}
    )
    off = Guesses(pool)
    off.count(record(("a", "")))
    assert (off.equip(pool.team).speculation, off.likeliest(record())) == (None, None)
    assert not off.admit("a", Decimal(0))


def test_a_worker_is_asked_once_enough_plans_asked_it() -> None:
    on = guesses()
    assert on.likeliest(record()) is None
    for _ in range(2):
        on.count(record(("a", "")))
    assert on.likeliest(record()) == "a"


def test_only_requests_that_may_use_all_workers_of_their_name_are_learned_and_guessed() -> None:
    on = guesses(max_share=1, min_plans=1)
    for _ in range(3):
        on.count(record(("a", ""), workers=("a",)))
        on.count(record(("a", ""), model="deep"))
        on.count(record(("a", ""), model="a worker"))
    for name in ("mini", "deep", "a worker"):
        assert on.likeliest(record(model=name, workers=(*NAMES, TEAM) if name == "deep" else NAMES)) is None
    on.count(record(("a", ""), workers=("b", "a")))
    on.count(record(("a", ""), model="ultra", workers=("a",)))
    on.count(record(("a", ""), model="deep", workers=(*NAMES, TEAM)))
    assert on.likeliest(record()) == "a", "in whatever order the pool was shown"
    assert on.likeliest(record(model="ultra", workers=("a",))) == "a"
    assert on.likeliest(record(model="deep", workers=(*NAMES, TEAM))) == "a"
    assert on.likeliest(record(workers=("a",))) is None


@pytest.mark.parametrize("whose", ["key", "team"])
def test_nobody_guesses_for_whom_a_minute_s_tokens_are_limited(whose: str) -> None:
    on = guesses()
    limited = Policies(**{whose: AccountPolicy(tokens_per_minute=1000)})
    assert on.equip(on._pool.team, limited).speculation is None
    assert on.equip(on._pool.team, Policies(key=AccountPolicy(requests_per_minute=1))).speculation is on


def test_what_it_may_cost_is_bounded_and_dear_workers_are_not_asked_by_default() -> None:
    assert guesses().admit("a", Decimal(0))
    assert not guesses().admit("a", Decimal("0.000001"))
    assert guesses(max_usd="0.01").admit("a", Decimal("0.01"))
    assert not guesses(max_usd="0.01").admit("a", Decimal("0.011"))


def test_half_of_a_worker_s_slots_stay_free_of_calls_and_guesses() -> None:
    on = guesses()
    limiter = on._pool.limiters["a"]
    assert [on.admit("a", Decimal(0)) for _ in range(5)] == [True] * 4 + [False]
    assert on.admit("b", Decimal(0)), "of each for itself"
    on.end("a", "lost")
    limiter._began_s["a call"] = 0.0
    assert not on.admit("a", Decimal(0))
    limiter._began_s.clear()
    limiter.queued = 1
    assert not on.admit("a", Decimal(0)), "somebody waits"
    limiter.queued = 0
    assert on.admit("a", Decimal(0))


def test_half_of_the_slots_of_each_fallback_stay_free_too() -> None:
    on = guesses({"a": {"fallbacks": ["b"]}, "b": {"max_concurrency": 4}})
    assert [on.admit("a", Decimal(0)) for _ in range(3)] == [True] * 2 + [False]
    assert not on.admit("b", Decimal(0)), "it may be asked for both of them"
    on.end("a", "lost")
    on._pool.limiters["b"]._began_s.update({"a call": 0.0, "another": 0.0})
    assert not on.admit("a", Decimal(0))
    on._pool.limiters["b"]._began_s.clear()
    assert on.admit("b", Decimal(0))


@pytest.mark.parametrize(
    "workers",
    [
        {"a": {"fallbacks": ["b"]}, "boss": {"fallbacks": ["b"]}},
        {"a": {"fallbacks": ["boss"]}},
        {"boss": {"fallbacks": ["a"]}},
    ],
)
def test_a_worker_whose_slot_the_conductor_may_wait_for_is_not_asked(workers: dict[str, Any]) -> None:
    assert not guesses(workers).admit("a", Decimal(0))


def test_a_worker_that_plans_itself_is_not_asked() -> None:
    said = {"conductor": {"worker": "a", "speculation": {}}, "workers": [{"name": "a", "kind": "scripted"}]}
    assert not Guesses(build_pool(parse(said), {}, {})).admit("a", Decimal(0))


def test_a_worker_whose_calls_fail_or_that_asks_for_a_rest_is_not_asked() -> None:
    on = guesses()
    for _ in range(3):
        on._pool.health["a"].fail()
    assert not on.admit("a", Decimal(0))
    on._pool.health["b"].fail(rest_s=60)
    assert not on.admit("b", Decimal(0))


def test_once_too_many_were_lost_none_is_made_until_plans_have_earned_it() -> None:
    on = guesses(max_share=0.25)

    def ask(outcome: Any) -> bool:
        if not on.admit("a", Decimal(0)):
            return False
        on.end("a", outcome)
        return True

    assert all(ask("kept") for _ in range(50)), "those that are kept cost nothing"
    assert [ask("lost") for _ in range(int(RESERVE) + 1)] == [True] * int(RESERVE) + [False]
    for _ in range(4):
        assert not ask("lost")
        on.count(record(("a", "")))
    assert ask("failed")
    assert not ask("lost")
    for _ in range(4):
        on.count(record(("a", "")))
    assert all(ask("cut") for _ in range(50)), "nobody knows whether these were right"
