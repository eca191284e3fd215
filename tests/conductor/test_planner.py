"""Limits on the length of a plan's text and on the time to write it."""

import asyncio

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from conductor.model.reply import Delta
from conductor.model.usage import Usage
from tests.conductor.team import DEAR, NEVER, Piece, Player, ask_for, line, run_and_check, team

FOREVER = ["and on "] * 10_000


async def test_an_endless_plan_is_cut_at_its_maximum_and_retried_once() -> None:
    leader = Player("leader", FOREVER, [line(0)], price=DEAR)
    got = await run_and_check(team(Player("a", "answer"), conductor=leader, max_plan_tokens=32), ask_for())
    first, second = got.record.plans
    assert (first.reject_reason, second.source, got.text) == ("truncated", "repair", "answer")
    assert first.result is not None
    assert len(first.result.output) < 8 * 32 + 10
    assert (first.result.finish, first.result.usage) == ("length", None)
    assert "max_plan_tokens" in first.result.notes[0]
    assert first.result.cost_usd is not None
    assert got.ledger.spent_usd == got.record.cost_usd, "billed at its bound, on the record as in the budget"


async def test_a_complete_plan_with_endless_trailing_text_runs() -> None:
    leader = Player("leader", [line(0), line(0, access=[0]), *FOREVER])
    got = await run_and_check(
        team(Player("a", "answer"), conductor=leader, max_plan_tokens=32), ask_for(max_steps=2)
    )
    assert (len(got.record.plans), got.record.fallback, got.text) == (1, None, "answer")


async def test_reasoning_does_not_count_towards_the_plans_length() -> None:
    thoughts: list[Piece] = [Delta(reasoning="hm " * 100)] * 100
    leader = Player("leader", [*thoughts, line(0)])
    got = await run_and_check(team(Player("a", "answer"), conductor=leader, max_plan_tokens=32), ask_for())
    assert (got.record.fallback, got.text) == (None, "answer")


async def test_one_worker_answers_if_the_conductor_exceeds_its_time() -> None:
    leader = Player("leader", ["I think ", NEVER])
    got = await run_and_check(
        team(Player("a", "answer"), conductor=leader, timeout_s=0.05), ask_for(deadline_s=60)
    )
    assert got.text == "answer"
    assert "not finish its plan in time" in (got.record.fallback or "")
    assert got.record.plans[0].failure.is_a(WorkerUnavailable)


async def test_a_step_is_cancelled_if_its_conductor_times_out() -> None:
    leader = Player("leader", [line(0), NEVER])
    worker = Player("a", ["never ", NEVER], "answer")
    got = await run_and_check(team(worker, conductor=leader, timeout_s=0.05), ask_for(max_steps=2))
    assert [step.status for step in got.record.plans[0].steps] == ["cancelled"]
    assert got.text == "answer"


async def test_a_plan_that_is_complete_at_its_timeout_runs() -> None:
    leader = Player("leader", [line(0), NEVER])
    got = await run_and_check(
        team(Player("a", "answer"), conductor=leader, timeout_s=0.05), ask_for(max_steps=1)
    )
    assert (len(got.record.plans), got.record.fallback, got.text) == (1, None, "answer")


async def test_the_wait_for_a_first_token_is_not_the_conductors_writing_time() -> None:
    """A replica may have to start first."""
    gate = asyncio.Event()
    leader = Player("leader", [gate, line(0), Usage(1, 1)])
    asyncio.get_running_loop().call_later(0.6, gate.set)
    got = await run_and_check(team(Player("a", "answer"), conductor=leader, timeout_s=0.5), ask_for())
    assert (got.record.fallback, got.text) == (None, "answer")


async def test_calls_have_the_deadline_of_the_request() -> None:
    leader, worker = Player("leader", [line(0)]), Player("a", "answer")
    await run_and_check(team(worker, conductor=leader), ask_for(deadline_s=60))
    calls: list[Call] = [*leader.calls, *worker.calls]
    assert len({call.terms.deadline_at_s for call in calls}) == 1
    assert calls[0].terms.deadline_at_s is not None
