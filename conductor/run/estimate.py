"""What a plan may cost at worst, before any of it runs."""

from collections.abc import Mapping
from decimal import Decimal

from conductor.model.call import Call, Sampling
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.usage import Usage
from conductor.plan.plan import Plan
from conductor.plan.prompts import work
from conductor.run.call_bound import call_bound

BYTES_PER_OUTPUT_TOKEN = 4
"""What an output token becomes when another worker reads it: prompts are bounded by their bytes, outputs by
their tokens."""


def worst_case(
    plan: Plan, pool: Mapping[str, PoolMember], conversation: tuple[Message, ...], sampling: Sampling
) -> tuple[list[Usage], list[Decimal | None]]:
    """Each step's tokens and dollars at most; 0 for a step that would never run, None where a price is
    unknown.

    The reservation made at run time is never larger, but for outputs of more than `BYTES_PER_OUTPUT_TOKEN`
    bytes a token.
    """
    tokens: list[Usage] = []
    for index, step in enumerate(plan.steps):
        member = pool[step.worker]
        prompt = work(member, conversation, step, plan.steps[:index], dict.fromkeys(step.access, ""))
        bound = call_bound(member, Call(prompt.messages, member.with_defaults(sampling)))
        read = sum(tokens[earlier].output_tokens for earlier in step.access) * BYTES_PER_OUTPUT_TOKEN
        tokens.append(Usage(bound.input_tokens + read, bound.output_tokens))
    needed = plan.reachable
    tokens = [usage if index in needed else Usage() for index, usage in enumerate(tokens)]
    prices = [pool[step.worker].worst_price for step in plan.steps]
    return tokens, [price.most(usage) if price else None for price, usage in zip(prices, tokens, strict=True)]
