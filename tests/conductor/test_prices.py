from collections.abc import AsyncGenerator
from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec.structs import replace

from conductor.model.deltas import open_reply
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import FREE, MILLION, LongPromptRates, Price, Usage, dearest_of
from conductor.run.ledger import BudgetLedger
from tests.conductor.prices import possible_usages, prices

GEMINI = Price(
    Decimal("1.25"), Decimal(10), Decimal("0.125"),
    long_prompts=(LongPromptRates(Decimal("2.5"), Decimal(15), Decimal("0.25"), above_input_tokens=200_000),),
)  # fmt: skip
CLAUDE = Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal(6))
any_usages = st.builds(Usage, *[st.integers(0, 10**12)] * 6)


@given(prices, any_usages)
def test_a_cost_is_at_least_zero_and_at_least_each_part(price: Price, usage: Usage):
    rates = price.rates_for(usage.input_tokens)
    cost_usd = price.of(usage)
    assert cost_usd >= 0
    assert cost_usd >= usage.cached_input_tokens * rates.cached / MILLION
    assert cost_usd >= usage.cache_write_1h_tokens * rates.write_1h / MILLION
    assert cost_usd >= usage.reasoning_tokens * rates.reasoning / MILLION


@given(prices, possible_usages())
def test_a_cost_is_the_sum_of_its_parts(price: Price, usage: Usage):
    rates = price.rates_for(usage.input_tokens)
    fresh = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
    assert price.of(usage) * MILLION == (
        fresh * rates.input_usd_per_mtok
        + usage.cached_input_tokens * rates.cached
        + (usage.cache_write_tokens - usage.cache_write_1h_tokens) * rates.write
        + usage.cache_write_1h_tokens * rates.write_1h
        + (usage.output_tokens - usage.reasoning_tokens) * rates.output_usd_per_mtok
        + usage.reasoning_tokens * rates.reasoning
    )


@given(prices, possible_usages())
@example(GEMINI, Usage(200_001, 1, 200_000))
@example(CLAUDE, Usage(10, 0, 0, 0, 10, 10))
def test_a_caches_savings_are_the_difference_to_the_uncached_price(price: Price, usage: Usage):
    plain = Usage(usage.input_tokens, usage.output_tokens, reasoning_tokens=usage.reasoning_tokens)
    assert price.of(usage) + price.savings(usage) == price.of(plain)
    assert price.savings(plain) == price.savings(plain, Decimal(7)) == 0
    assert price.savings(usage, Decimal(7)) == (0 if plain == usage or price == FREE else price.of(plain) - 7)
    assert CLAUDE.savings(Usage(10, 0, 0, 0, 10)) < 0, "writes cost more than other input"


@given(prices, possible_usages(), st.integers(0, 10**6), st.integers(0, 10**6))
@example(GEMINI, Usage(200_001, 1), 0, 0)
@example(GEMINI, Usage(200_000, 1), 1, 0)
@example(CLAUDE, Usage(10, 0, 0, 0, 10, 10), 0, 0)
def test_a_hold_covers_every_price_tier_and_count(price: Price, usage: Usage, more_in: int, more_out: int):
    bound = Usage(usage.input_tokens + more_in, usage.output_tokens + more_out)
    assert price.of(usage) <= price.most(bound)


@given(prices, st.integers(0, 10**6), st.integers(1, 10**5), st.integers(0, 10**12))
async def test_an_answer_limited_to_the_remaining_budget_does_not_exceed_it(
    price: Price, input_tokens: int, longest: int, nano_usd: int
):
    left_usd = Decimal(nano_usd) / 10**9
    ledger = BudgetLedger()
    ledger.budget = replace(ledger.budget, max_cost_usd=left_usd)
    room = ledger._room(price, input_tokens)  # pyright: ignore[reportPrivateUsage]
    if room is None or room >= 0:
        shortened = longest if room is None else min(room, longest)
        assert price.most(Usage(input_tokens, shortened)) <= left_usd


@given(st.lists(prices, min_size=1, max_size=3), possible_usages())
def test_the_highest_price_is_at_least_each_of_the_prices(several: list[Price], usage: Usage):
    dearest = dearest_of(several)
    assert all(price.of(usage) <= dearest.of(usage) for price in several)
    assert all(price.most(usage) <= dearest.most(usage) for price in several)


def test_a_long_prompt_raises_the_price_of_every_token_of_the_call():
    assert GEMINI.of(Usage(200_000, 1000)) == Decimal("0.25") + Decimal("0.01")
    assert GEMINI.of(Usage(200_001, 1000)) == Decimal("0.5000025") + Decimal("0.015")
    assert GEMINI.of(Usage(400_000, 0, 100_000)) == Decimal("0.75") + Decimal("0.025")


def test_cache_writes_use_their_own_price_or_the_input_price():
    assert CLAUDE.of(Usage(1_000_000, 0, 0, 0, 400_000, 100_000)) == Decimal("1.8") + Decimal(
        "1.125"
    ) + Decimal("0.6")
    assert Price(Decimal(3), Decimal(15)).of(Usage(1_000_000, 0, 0, 0, 400_000, 100_000)) == 3


def test_reasoning_tokens_use_their_own_price_or_the_output_price():
    usage = Usage(0, 1_000_000, 0, 250_000)
    assert Price(Decimal(2), Decimal(8)).of(usage) == 8
    assert Price(Decimal(2), Decimal(8), reasoning_usd_per_mtok=Decimal(3)).of(usage) == Decimal("6.75")


IMPOSSIBLE = [
    Usage(-1, 5), Usage(5, -1), Usage(10**30, 1), Usage(5, 5, 6), Usage(5, 5, 0, 6), Usage(5, 5, 3, 0, 3),
    Usage(5, 5, 0, 0, 1, 2), Usage(1.5, 1), Usage(True, 1), Usage("5", 1), Usage(5, None),
]  # fmt: skip


@pytest.mark.parametrize("usage", IMPOSSIBLE)
def test_impossible_usage_is_detected(usage: Usage):
    assert not usage.is_possible


@given(possible_usages(), possible_usages())
def test_usages_add_up_field_by_field(a: Usage, b: Usage):
    assert a.is_possible
    assert (a + b).is_possible
    for name in Usage.__struct_fields__:
        assert getattr(a + b, name) == getattr(a, name) + getattr(b, name)


async def test_a_zero_cost_without_usage_does_not_lower_the_bill():
    async def deltas() -> AsyncGenerator[Delta]:
        yield Delta("word")
        yield Delta(finish=FinishReason.STOP, cost_usd=Decimal(0))

    bound = Usage(100, 200)
    async with open_reply("a", "m", deltas(), CLAUDE) as reply:
        reply.bound = bound
        async for _ in reply:
            pass
        assert (reply.result.cost_usd, reply.result.cost_is_bound) == (CLAUDE.most(bound), True)
