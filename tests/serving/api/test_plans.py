"""The maximum cost of a plan, as `POST /v1/plans` shows it."""

import asyncio
import dataclasses

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.model.call import Sampling
from conductor.model.usage import Usage
from conductor.plan.plan import Plan
from conductor.run.ledger import Budget
from conductor.run.team import Team
from serving.api.plans import worst_case
from tests.conductor.plans import NAMES, plans
from tests.conductor.team import DEAR, Player, a_plan, ask_for, member, run_and_check, team


@given(plans(), st.integers(1, 3_000))
def test_no_step_reserves_more_than_its_preview(plan: Plan, limit: int) -> None:
    players = [
        Player(name, lambda call: ["0123"] * min(call.sampling.max_output_tokens, 50), price=DEAR)
        for name in NAMES
    ]  # type: ignore[type-var]
    engine = team(*players)
    task = ask_for(plan=plan, sampling=Sampling(max_output_tokens=limit))
    worst, costs = worst_case(plan, engine.pool, task.conversation, task.sampling)
    bound = sum(cost for cost in costs if cost is not None)
    tight = replace(
        task, budget=Budget(max_cost_usd=bound, max_tokens=sum(usage.total_tokens for usage in worst))
    )
    run = asyncio.run(run_and_check(engine, tight))
    assert run.record.status == "finished"
    assert all(call.sampling.max_output_tokens == limit for player in players for call in player.calls), (
        "nothing was shortened"
    )
    assert [usage == Usage() for usage in worst] == [
        index not in plan.reachable for index in range(len(plan.steps))
    ]


def test_a_preview_of_an_unknown_price_is_unknown() -> None:
    engine = Team(None, {"a": dataclasses.replace(member(Player("a")), worst_price=None)})
    assert worst_case(a_plan(("a", ())), engine.pool, ask_for().conversation, Sampling())[1] == [None]
