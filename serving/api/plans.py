"""Answers of `POST /v1/plans`: a plan, and the most that it can cost."""

from collections.abc import Mapping
from decimal import Decimal
from typing import Never

from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.usage import Usage, total
from conductor.model.worker import PoolMember
from conductor.plan.plan import Plan
from conductor.plan.prompts import work
from conductor.run.call_bound import call_bound, with_defaults
from conductor.run.record import Record, RunRecords
from conductor.run.team import TEAM, TeamWorker
from serving.api import record_json
from serving.api.resolve import ResolvedTask
from serving.api.run_response import RunResponse

BYTES_PER_OUTPUT_TOKEN = 4
"""Assumed bytes per token of an output that is read, as prompts are bounded in bytes."""


class PlanResponse(RunResponse):
    """Response to `POST /v1/plans`. Its run ends with a plan. If the client leaves, the call is closed."""

    plan_only = True

    def content(self, records: RunRecords, resolved: ResolvedTask | None) -> record_json.Json:
        """Return the plan and its worst-case cost."""
        assert resolved is not None, "a run that only plans is never resumed"
        return _plan_json(records.record, resolved)


def _plan_json(record: Record, resolved: ResolvedTask) -> record_json.Json:
    plan_record = record.answering_plan
    assert plan_record is not None, "a run that finished has a plan"
    plan = Plan(tuple(step.step for step in plan_record.steps))
    tokens, costs = worst_case(plan, _pool(resolved), resolved.task.conversation, resolved.task.sampling)
    steps = [
        record_json.step_json(step)
        | {
            "worst_case_cost_usd": record_json.dollars(cost),
            "worst_case_tokens": usage.total_tokens,
            "needed": index in plan.reachable,
        }
        for index, (step, usage, cost) in enumerate(zip(plan_record.steps, tokens, costs, strict=True))
    ]
    return {
        "object": "plan",
        "model": record.model,
        "plan": [record_json.step_json(step) for step in plan_record.steps],
        "steps": steps,
        "worst_case_cost_usd": record_json.dollars(total(costs)),
        "worst_case_tokens": sum(usage.total_tokens for usage in tokens),
        "podium": record_json.summary(record, trace=False),
        "usage": record_json.usage(record),
    }


def _pool(resolved: ResolvedTask) -> dict[str, PoolMember]:
    """Return the pool plus the team itself, whose cost is unknown until its plan exists."""
    team = TeamWorker(resolved.task.model, _open_nothing)
    members = resolved.team.members_for(resolved.task)
    return {TEAM: PoolMember(TEAM, team, price=None, worst_price=None), **members}


def _open_nothing(_: Call) -> Never:
    raise AssertionError("an estimate calls no worker")


def worst_case(
    plan: Plan, pool: Mapping[str, PoolMember], conversation: tuple[Message, ...], sampling: Sampling
) -> tuple[list[Usage], list[Decimal | None]]:
    """Return the maximum token usage and the maximum cost of each step, as two lists.

    The usage of a step that would never run is zero. A cost is None if the price is unknown. Reservations at run
    time are never larger, unless an output has more than `BYTES_PER_OUTPUT_TOKEN` bytes per token.
    """
    tokens: list[Usage] = []
    for index, step in enumerate(plan.steps):
        member = pool[step.worker]
        prompt = work(member, conversation, step, plan.steps[:index], dict.fromkeys(step.access, ""))
        bound = call_bound(member, Call(prompt.messages, with_defaults(member, sampling)))
        read = sum(tokens[earlier].output_tokens for earlier in step.access) * BYTES_PER_OUTPUT_TOKEN
        tokens.append(Usage(bound.input_tokens + read, bound.output_tokens))
    needed = plan.reachable
    tokens = [usage if index in needed else Usage() for index, usage in enumerate(tokens)]
    prices = [pool[step.worker].worst_price for step in plan.steps]
    return tokens, [price.most(usage) if price else None for price, usage in zip(prices, tokens, strict=True)]
