"""Limits and choices of a request: `reasoning_effort` and the fields of `podium`."""

import asyncio

import pytest

from tests.serving.api.served import PRICE, TWO, Json, plan, scripted, served, step, team
from tests.states import until

FIVE = plan(*(step("a") for _ in range(4)), step("b", "Join them.", "all"))
ONE = plan(step("c", "Answer."))


def rejection_of(answer: Json) -> list[str | None]:
    return [each["rejected"] for each in answer["plans"]]


@pytest.mark.parametrize(
    ("effort", "steps", "rounds"),
    [
        ("none", 1, 1),
        ("minimal", 1, 1),
        ("low", 2, 1),
        ("medium", 3, 1),
        ("high", 5, 1),
        ("xhigh", 5, 2),
        ("max", 5, 2),
    ],
)
async def test_every_reasoning_effort_sets_the_maximum_of_steps_and_rounds(
    effort: str, steps: int, rounds: int
):
    """The conductor's prompt has the maximum number of steps, a plan with one more is rejected, and the rounds are
    limited.
    """
    fits = plan(*(step("a") for _ in range(steps)))
    async with served(team(plan(*(step("a") for _ in range(steps + 1))), fits)) as api:
        answer = await api.ok({"reasoning_effort": effort})
        record = await api.record(answer["podium"]["workflow_id"])
        first = record["plans"][0]
    assert f"at most {steps} step" in first["prompt"][0]["content"]
    assert (first["rejected"], first["why"]) == ("too_many_steps", f"The plan has more than {steps} steps.")
    assert answer["podium"]["rounds"] == rounds
    assert record["plans"][1]["source"] == "repair"


async def test_effort_reaches_the_models():
    async with served(team()) as api:
        await api.ok({"model": "a", "reasoning_effort": "low"})
        assert api.worker("a").calls[0].sampling.effort == "low"


async def test_effort_never_exceeds_the_models_limits():
    async with served(team(models={"mini": {"max_steps": 2}})) as api:
        answer = await api.ok({"reasoning_effort": "high"})
        record = await api.record(answer["podium"]["workflow_id"])
    assert "at most 2 steps." in record["plans"][0]["prompt"][0]["content"]


async def test_max_steps_is_in_the_prompt_and_enforced():
    async with served(team(FIVE, ONE)) as api:
        answer = await api.ok(max_steps=3)
        record = await api.record(answer["podium"]["workflow_id"])
    assert rejection_of(record) == ["too_many_steps", None]
    assert len(record["plan"]) == 1


async def test_a_fixed_workflow_with_too_many_steps_is_rejected():
    async with served(team()) as api:
        answer = await api.post({"model": "duo"}, max_steps=1)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "podium.max_steps")
        assert len((await api.ok({"model": "duo"}, max_steps=2))["podium"]["steps"]) == 2


async def test_the_request_may_set_the_number_of_rounds():
    async with served(team(plan(step("a")), plan(step("b")), plan(step("c")))) as api:
        assert [(await api.ok(rounds=n))["podium"]["rounds"] for n in (1, 2, 3)] == [1, 2, 3]
        assert (await api.ok({"model": "ultra"}, rounds=1))["podium"]["rounds"] == 1


async def test_only_the_requested_workers_are_shown_and_used():
    async with served(team(plan(step("a")), plan(step(0, "Answer.")))) as api:
        answer = await api.ok(workers=["c", "b"])
        record = await api.record(answer["podium"]["workflow_id"])
    assert rejection_of(record) == ["unknown_worker", None]
    assert [s["worker"] for s in record["plan"]] == ["c"], "number 0 is the first that was named"


async def test_an_excluded_worker_is_not_used():
    async with served(team(plan(step("a")), plan(step(0, "Answer.")))) as api:
        answer = await api.ok(exclude_workers=["a", "c"])
        record = await api.record(answer["podium"]["workflow_id"])
        assert not api.worker("a").calls
    assert [s["worker"] for s in record["plan"]] == ["b"]


async def test_a_fixed_workflow_cannot_exclude_its_own_workers():
    async with served(team()) as api:
        for model, podium, field in [
            ("duo", {"exclude_workers": ["b"]}, "podium.exclude_workers"),
            ("duo", {"workers": ["a"]}, "podium.workers"),
            ("a", {"exclude_workers": ["a"]}, "podium.exclude_workers"),
            ("a", {"workers": ["b"]}, "podium.workers"),
            ("a", {"workers": ["nobody"]}, "podium.workers"),
            ("duo", {"workers": ["a", "b", "nobody"]}, "podium.workers"),
        ]:
            answer = await api.post({"model": model}, **podium)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, field), (model, podium)
        assert (await api.post({"model": "duo"}, workers=["a", "b"])).status_code == 200


async def test_a_request_over_its_cost_limit_returns_402_with_the_amounts():
    async with served(team()) as api:
        answer = await api.post(max_cost_usd=0.000001)
        record = await api.newest()
    error = answer.json()["error"]
    assert (answer.status_code, error["param"], error["code"]) == (
        402,
        "podium.max_cost_usd",
        "budget_exceeded",
    )
    assert error["podium"].keys() >= {"spent", "held", "limit", "workflow_id"}
    assert (record["status"], record["error"]["code"]) == ("failed", "budget_exceeded")
    assert record["cost_usd"] == 0


async def test_an_answer_is_shortened_to_its_cost_limit():
    long = scripted("a", "word " * 3000, price={"input_usd_per_mtok": 0, "output_usd_per_mtok": 10})
    async with served(team(workers=[long], workflows={})) as api:
        answer = await api.ok({"model": "a"}, max_cost_usd=0.001)
    assert answer["podium"]["cost_usd"] == pytest.approx(0.001)
    assert answer["choices"][0]["finish_reason"] == "length"


async def test_max_tokens_limits_all_calls_together():
    async with served(team()) as api:
        refusal = await api.post(max_tokens=30)
        enough = await api.ok({"model": "a"}, max_tokens=500)
        call = api.worker("a").calls[-1]
    assert (refusal.status_code, refusal.json()["error"]["param"]) == (402, "podium.max_tokens")
    assert enough["usage"]["total_tokens"] <= 500
    assert call.sampling.max_output_tokens is not None
    assert call.sampling.max_output_tokens < 500


async def test_at_a_deadline_everything_is_closed_and_clients_do_not_retry():
    slow = scripted("a", "x", delay_s=30)
    async with served(team(workers=[slow], workflows={})) as api:
        answer = await api.post({"model": "a"}, deadline_s=0.05)
        record = await api.newest()
        assert api.worker("a").open_calls == 0
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "deadline_exceeded"), "a model was called"
    assert (error["param"], error["podium"]["deadline_s"]) == ("podium.deadline_s", 0.05)
    assert (record["status"], record["steps"][0]["status"]) == ("failed", "cancelled")


async def test_the_models_own_deadline_and_cost_limits_apply():
    slow = scripted("a", "x", delay_s=30, price=PRICE)
    models = {"mini": {"deadline_s": 0.05}, "poor": {"max_cost_usd": "0.000001"}}
    async with served(team(plan(step("a")), workers=[slow], workflows={}, models=models)) as api:
        assert (await api.post(deadline_s=20)).status_code == 400, "its plan was paid"
        assert (await api.post({"model": "poor"}, max_cost_usd=1)).status_code == 402


async def test_a_plan_in_the_request_runs_unchanged():
    own = [step("c", "First."), {"worker": "a", "subtask": "Second."}, step("b", "Third.", "all")]
    async with served(team(models={"mini": {"max_steps": 2}})) as api:
        answer = await api.ok(plan=own, trace=True)
        record = await api.record(answer["podium"]["workflow_id"])
        assert not api.worker("conductor").calls
    assert record["plan"] == [step("c", "First."), step("a", "Second."), step("b", "Third.", [0, 1])]
    assert record["plans"][0]["source"] == "client"
    assert answer["usage"]["completion_tokens_details"]["orchestration_output_tokens"] == 6


async def test_a_plan_in_the_request_works_with_any_model_and_without_a_conductor():
    alone = {"workers": [scripted("a"), scripted("b")]}
    async with served(alone) as api:
        answer = await api.ok({"model": "a"}, plan=[step("b", "Answer.")])
    assert answer["choices"][0]["message"]["content"] == "b says so."


async def test_an_unused_step_of_a_given_plan_never_runs():
    async with served(team()) as api:
        answer = await api.ok(plan=[step("a", "Nobody reads this."), step("b", "Answer.")])
        record = await api.record(answer["podium"]["workflow_id"])
        assert not api.worker("a").calls
    assert [s["output"] for s in record["steps"]] == [None, "Blue light scatters most."]
    assert record["steps"][0]["status"] in ("planned", "not_needed")


async def test_independent_steps_run_in_parallel():
    both = [
        scripted("a", {"text": "x y", "stall_after_tokens": 1}),
        scripted("b", {"text": "x y", "stall_after_tokens": 1}),
    ]
    async with served(team(workers=both, workflows={})) as api:
        own = [step("a"), step("b"), step("a", "Join.", [0, 1])]
        asking = asyncio.create_task(api.post(plan=own, deadline_s=5))
        await until(lambda: api.worker("a").open_calls == 1 and api.worker("b").open_calls == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await api.quiet()


async def test_the_plans_endpoint_runs_no_step_and_returns_the_maximum_cost():
    async with served(team()) as api:
        answer = await api.http.post(
            "/v1/plans", json={"model": "mini", "messages": [{"role": "user", "content": "Why?"}]}
        )
        body = answer.json()
        ran = [len(api.worker(name).calls) for name in ("conductor", "a", "b", "c")]
        real = await api.ok({"messages": [{"role": "user", "content": "Why?"}]}, trace=True)
        record = await api.record(answer.headers["x-podium-workflow-id"])
    assert answer.status_code == 200
    assert ran == [1, 0, 0, 0]
    assert body["plan"] == [step("a", "Find a reason."), step("b", "Conclude.", [0])]
    assert body["worst_case_cost_usd"] == pytest.approx(sum(s["worst_case_cost_usd"] for s in body["steps"]))
    assert body["worst_case_cost_usd"] >= real["podium"]["cost_usd"] > 0
    assert body["worst_case_tokens"] >= sum(
        sum(list(s["usage"].values())[:2]) for s in real["podium"]["steps"]
    )
    assert body["usage"]["completion_tokens"] == 0
    assert body["podium"]["cost_usd"] == 0
    assert [s["status"] for s in record["steps"]] == ["planned", "planned"]


async def test_the_plans_endpoint_handles_given_plans_unused_steps_and_unknown_prices():
    nowhere = {"name": "api", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:9"}
    workers = [scripted("a", price=PRICE), scripted("b", fallbacks=["api"]), nowhere]
    async with served(team(workers=workers, workflows={"solo": [step("a")]})) as api:
        body = await api.ok(path="/v1/plans", plan=[step("a"), step("a", "Answer.")])
        fixed = await api.ok({"model": "solo"}, path="/v1/plans")
        unknown = await api.ok({"model": "b"}, path="/v1/plans")
        refusal = await api.post(path="/v1/plans", plan=[step("a", "x", [1])])
        assert not api.worker("a").calls
        await api.service.pool.aclose()
    assert [s["needed"] for s in body["steps"]] == [False, True]
    assert body["steps"][0]["worst_case_cost_usd"] == 0
    assert fixed["worst_case_cost_usd"] > 0
    assert unknown["worst_case_cost_usd"] is None, "the one it may fall back to has no price"
    assert refusal.status_code == 400


async def test_plans_honours_limits_and_a_largest_answer():
    async with served(team(FIVE, ONE)) as api:
        limited = await api.ok(path="/v1/plans", max_steps=2, workers=["c"])
        huge = await api.ok({"max_tokens": 1_000_000_000}, path="/v1/plans")
    assert [s["worker"] for s in limited["plan"]] == ["c"]
    assert huge["worst_case_tokens"] >= 1_000_000_000


async def test_the_plans_endpoint_accepts_the_team_as_a_worker_with_unknown_cost():
    deep = {"mini": {"depth": 1}}
    async with served(team(plan(step("team", "All of it.")), TWO, models=deep)) as api:
        planned = await api.ok(path="/v1/plans")
        api.worker("conductor")._turn = 0
        answer = await api.ok()
        record = await api.record(answer["podium"]["workflow_id"])
    assert planned["plan"] == [step("team", "All of it.")]
    assert planned["worst_case_cost_usd"] is None
    assert answer["choices"][0]["message"]["content"] == "Blue light scatters most."
    assert record["steps"][0]["cost_usd"] == pytest.approx(answer["podium"]["cost_usd"])


async def test_the_plans_endpoint_never_streams():
    async with served(team()) as api:
        assert (await api.ok({"stream": True}, path="/v1/plans"))["object"] == "plan"


async def test_the_plans_endpoint_returns_a_failure_with_its_run_id():
    async with served(team()) as api:
        answer = await api.post(path="/v1/plans", max_tokens=10)
    assert (answer.status_code, answer.json()["error"]["code"]) == (402, "budget_exceeded")
    assert answer.headers["x-podium-workflow-id"] == answer.json()["error"]["podium"]["workflow_id"]
