"""Conductors at another address, and pools with the workers of one model."""

from typing import Any

import pytest

from evaluation import EvaluationError
from evaluation.backends import Caps
from evaluation.backends.in_process import InProcessBackend, with_conductor_at
from evaluation.outcome import RunOutcome
from evaluation.results import TRANSIENT
from evaluation.strategies import make
from evaluation.strategies.conductor import unreachable_as_error
from serving.settings.settings import parse
from tests.evaluation.pools import sums, worker
from tests.serving.api.served import plan as plan_reply
from tests.serving.api.served import scripted, served, step

QUESTION = sums(3)[2]
POOL: dict[str, Any] = {
    "conductor": {"worker": "conductor", "constrained": False},
    "workers": [
        {"name": "conductor", "kind": "vllm", "model": "some/model", "in_pool": False},
        worker("good"),
        worker("bad", off=1),
        worker("spare"),
    ],
    "models": {"two": {"workers": ["bad", "good"]}, "all": {}},
}


async def test_a_conductor_at_another_server_plans_for_the_pool_here():
    there = {"workers": [scripted("planner", plan_reply(step("good", "Add them.")))]}
    async with served(there) as running:
        here = InProcessBackend(with_conductor_at(parse(POOL), f"{running.url}/v1", "planner"), {})
        outcome = await here.run(QUESTION, Caps())
        await here.aclose()
    assert (outcome.error, outcome.plan) == (None, ("good[]: Add them.",))
    assert f"<answer>{QUESTION.expected}</answer>" in outcome.answer


async def test_a_step_without_a_subtask_is_recorded_and_answers_the_question():
    there = {"workers": [scripted("planner", plan_reply(step("good", "")))]}
    async with served(there) as running:
        here = InProcessBackend(with_conductor_at(parse(POOL), f"{running.url}/v1", "planner"), {})
        outcome = await here.run(QUESTION, Caps())
        await here.aclose()
    assert (outcome.error, outcome.plan) == (None, ("good[]: answer the question",))
    assert f"<answer>{QUESTION.expected}</answer>" in outcome.answer


async def test_a_pool_without_a_conductor_is_evaluated_per_worker():
    here = InProcessBackend(parse(POOL), {})
    assert (here.workers, here.has_conductor) == (("good", "bad", "spare"), False)
    with pytest.raises(EvaluationError, match=r"conductor\?at=http"):
        make(["conductor"], here, lambda *_: here)
    await here.aclose()


async def test_a_models_own_workers_are_evaluated_in_their_order():
    settings, there = (
        parse(POOL),
        scripted("planner", plan_reply(step("good", "Add.")), plan_reply(step("spare", "Add."))),
    )
    async with served({"workers": [there]}) as running:
        here = InProcessBackend(with_conductor_at(settings, f"{running.url}/v1", "planner"), {}, model="two")
        allowed, not_its = await here.run(QUESTION, Caps()), await here.run(QUESTION, Caps())
        await here.aclose()
    assert here.workers == ("bad", "good")
    assert (allowed.format_failures, not_its.format_failures) == (0, 1)  # the second plan was repaired
    with pytest.raises(EvaluationError, match="Available models: two, all"):
        InProcessBackend(settings, {}, model="three")


def test_strategies_over_one_pool_may_have_labels():
    settings = parse(POOL)

    def open_backend(path: str | None, at: str | None, model: str | None) -> InProcessBackend:
        assert path is None
        assert at is not None
        return InProcessBackend(with_conductor_at(settings, at, model), {})

    names = ["conductor?at=http://127.0.0.1:1/v1", "trained?at=http://127.0.0.1:1/v1&model=new&as=taught"]
    strategies = make([*names, "best_of_n?match=taught"], InProcessBackend(settings, {}), open_backend)
    assert [each.label for each in strategies] == [names[0], "taught", "best_of_n?match=taught"]
    bare = {"workers": [worker("good")]}
    with pytest.raises(EvaluationError, match="no `conductor`"):
        with_conductor_at(parse(bare), "http://127.0.0.1:1/v1")


def test_only_a_fallback_for_an_unreachable_conductor_is_retried():
    outcome = RunOutcome(answer="7", fallback="the conductor failed: WorkerUnavailable: connection refused")
    assert unreachable_as_error(outcome).error in TRANSIENT
    refused = RunOutcome(answer="7", fallback="the plan was rejected twice, the last time as no_plan: ...")
    assert unreachable_as_error(refused) == refused


async def test_an_unreachable_conductor_is_an_error_although_the_fallback_answers():
    here = InProcessBackend(with_conductor_at(parse(POOL), "http://127.0.0.1:1/v1", "planner"), {})
    outcome = await here.run(QUESTION, Caps())
    await here.aclose()
    assert unreachable_as_error(outcome).error in TRANSIENT
    with pytest.raises(EvaluationError, match="is not a URL"):
        with_conductor_at(parse(POOL), "notaurl")
