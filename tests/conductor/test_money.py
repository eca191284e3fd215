import asyncio
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conductor.errors import BudgetExceeded
from conductor.model.usage import FREE, Price, Usage, cost_of, total
from conductor.run.ledger import LEAST_ANSWER_TOKENS, Budget, BudgetLedger
from tests.conductor.prices import possible_usages
from tests.conductor.team import DEAR, turns
from tests.states import until

PRICES = (FREE, DEAR, Price(Decimal("0.15"), Decimal("0.6"), Decimal("0.03")), Price(Decimal(3), Decimal(0)))


def cents(count: int) -> Decimal:
    return Decimal(count) / 100


@dataclass(frozen=True)
class WantedCall:
    """Call that a step wants to make, and its outcome."""

    price: Price | None
    input_tokens: int
    max_output_tokens: int
    used: float
    """Fraction of its tokens that it uses."""
    turns: int
    ending: str


asks = st.builds(
    WantedCall,
    price=st.sampled_from([*PRICES, None]),
    input_tokens=st.integers(0, 2_000),
    max_output_tokens=st.integers(1, 5_000),
    used=st.floats(0, 1),
    turns=st.integers(0, 4),
    ending=st.sampled_from(["settle", "unknown", "unpriced", "release", "raise", "cancel", "leave"]),
)
budgets = st.builds(
    Budget,
    max_cost_usd=st.none() | st.integers(0, 100).map(cents),
    max_tokens=st.none() | st.integers(0, 10_000),
)


@given(budgets, st.lists(asks, max_size=8))
def test_spent_and_held_amounts_never_exceed_the_limit(budget: Budget, calls: list[WantedCall]) -> None:  # noqa: C901
    ledger = BudgetLedger(budget)

    def inside() -> None:
        assert budget.max_cost_usd is None or ledger.spent_usd + ledger.on_hold_usd <= budget.max_cost_usd
        assert budget.max_tokens is None or ledger.spent_tokens + ledger.on_hold_tokens <= budget.max_tokens

    async def call(one: WantedCall) -> str:
        try:
            async with ledger.hold(one.price, one.input_tokens, one.max_output_tokens, "a worker") as hold:
                inside()
                assert 0 <= hold.max_output_tokens <= one.max_output_tokens
                assert hold.max_output_tokens >= min(LEAST_ANSWER_TOKENS, one.max_output_tokens)
                await turns(one.turns)
                inside()
                usage = Usage(int(one.input_tokens * one.used), int(hold.max_output_tokens * one.used))
                match one.ending:
                    case "settle":
                        await ledger.settle(hold, cost_of(one.price, usage), usage)
                    case "unknown":
                        await ledger.settle(hold, None, None)
                    case "unpriced":
                        await ledger.settle(hold, None, usage)
                    case "release":
                        await ledger.settle(hold, Decimal(0), Usage())
                    case "raise":
                        raise ValueError
                    case "cancel":
                        asyncio.current_task().cancel()  # type: ignore[union-attr]
                        await asyncio.sleep(0)
                    case _:
                        pass
        except BudgetExceeded:
            freed = [hold for hold in ledger.holds if hold.cost_usd or budget.max_tokens is not None]
            assert freed == [], "while others hold some of what is limited, it waits for them"
            return "refused"
        except (ValueError, asyncio.CancelledError):
            pass
        inside()
        return "made"

    async def everyone() -> None:
        await asyncio.gather(*(call(one) for one in calls))

    asyncio.run(everyone())
    inside()
    assert ledger.holds == []
    assert ledger.on_hold_usd == ledger.on_hold_tokens == 0


async def test_parallel_calls_wait_instead_of_exceeding_the_budget() -> None:
    ledger = BudgetLedger(Budget(max_tokens=250))
    first, second, third = (asyncio.Event() for _ in range(3))
    began: list[int] = []

    async def call(number: int, leave: asyncio.Event) -> None:
        async with ledger.hold(FREE, 50, 100, f"worker {number}") as hold:
            began.append(number)
            await leave.wait()
            await ledger.settle(hold, Decimal(0), Usage(1, 9))

    async with asyncio.TaskGroup() as group:
        for number, leave in enumerate((first, second, third)):
            group.create_task(call(number, leave))
        await turns()
        assert began == [0]
        first.set()
        await until(lambda: began == [0, 1])
        await turns()
        assert ledger.on_hold_tokens == 150
        second.set()
        await until(lambda: began == [0, 1, 2])
        third.set()
    assert (ledger.spent_tokens, ledger.holds) == (30, [])


async def test_a_wait_for_budget_can_be_cancelled() -> None:
    ledger = BudgetLedger(Budget(max_tokens=150))
    async with ledger.hold(FREE, 50, 100, "a"):
        waiting = asyncio.create_task(ledger.hold(FREE, 50, 100, "b").__aenter__())
        await turns()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert ledger.on_hold_tokens == 150
    assert ledger.holds == []


async def test_an_answer_is_limited_to_the_remaining_budget() -> None:
    async with BudgetLedger(Budget(max_tokens=300)).hold(FREE, 100, 4_096, "a") as hold:
        assert (hold.tokens, hold.max_output_tokens) == (300, 200)
    async with BudgetLedger(Budget(max_cost_usd=Decimal("0.02"))).hold(DEAR, 1_000, 4_096, "a") as hold:
        assert (hold.cost_usd, hold.max_output_tokens) == (Decimal("0.02"), 100)


async def test_an_answer_is_not_shortened_to_zero_tokens() -> None:
    with pytest.raises(BudgetExceeded):
        async with BudgetLedger(Budget(max_tokens=100 + LEAST_ANSWER_TOKENS - 1)).hold(FREE, 100, 4_096, "a"):
            pass
    async with BudgetLedger(Budget(max_tokens=105)).hold(FREE, 100, 5, "a") as hold:
        assert hold.max_output_tokens == 5, "asked for no more than that"


@pytest.mark.parametrize(
    ("budget", "field", "figures"),
    [
        (Budget(max_cost_usd=cents(5)), "podium.max_cost_usd", ("$0.04", "$0", "$0.05")),
        (Budget(max_tokens=500), "podium.max_tokens", ("450 tokens", "0 tokens", "500 tokens")),
        (
            Budget(max_cost_usd=cents(500), max_tokens=500),
            "podium.max_tokens",
            ("450 tokens", "0 tokens", "500 tokens"),
        ),
        (Budget(max_cost_usd=cents(5), max_tokens=50_000), "podium.max_cost_usd", ("$0.04", "$0", "$0.05")),
    ],
)
async def test_a_budget_error_states_spent_held_and_limit(
    budget: Budget, field: str, figures: tuple[str, str, str]
) -> None:
    ledger = BudgetLedger(budget, spent_usd=cents(4), spent_tokens=450)
    with pytest.raises(BudgetExceeded) as refused:
        async with ledger.hold(DEAR, 900, 900, "gpt-5"):
            pass
    error = refused.value
    assert error.param == field
    assert (error.spent, error.held, error.limit) == figures
    assert all(text in error.message for text in ("gpt-5", *figures, field))
    assert ledger.holds == []


async def test_under_a_budget_an_unknown_price_is_an_error() -> None:
    with pytest.raises(BudgetExceeded, match="price of a or of one of its fallbacks is unknown"):
        async with BudgetLedger(Budget(max_cost_usd=cents(100))).hold(None, 1, 1, "a"):
            pass
    async with BudgetLedger(Budget(max_tokens=100)).hold(None, 1, 64, "a") as hold:
        assert hold.max_output_tokens == 64


async def test_a_free_call_needs_no_budget() -> None:
    async with BudgetLedger(Budget(max_cost_usd=Decimal(0))).hold(FREE, 10_000, 4_096, "a") as hold:
        assert hold.max_output_tokens == 4_096


async def test_unknown_usage_counts_at_its_bound_and_the_cost_stays_unknown() -> None:
    ledger = BudgetLedger(Budget(max_cost_usd=cents(100)))
    async with ledger.hold(DEAR, 1_000, 100, "a") as hold:
        await ledger.settle(hold, cost_of(DEAR, None), None)
    assert cost_of(DEAR, None) is None
    assert (ledger.spent_usd, ledger.spent_tokens) == (Decimal("0.02"), 1_100)


async def test_a_call_that_reached_no_server_costs_nothing() -> None:
    ledger = BudgetLedger(Budget(max_cost_usd=cents(100)))
    async with ledger.hold(DEAR, 1_000, 100, "a") as hold:
        await ledger.settle(hold, Decimal(0), Usage())
    assert (ledger.spent_usd, ledger.spent_tokens, ledger.holds) == (0, 0, [])


@given(possible_usages(), possible_usages(), st.sampled_from(PRICES))
def test_costs_are_additive_over_tokens(a: Usage, b: Usage, price: Price) -> None:
    assert price.of(a) + price.of(b) == price.of(a + b)
    assert (a + b).total_tokens == a.total_tokens + b.total_tokens


def test_an_unknown_cost_is_never_zero() -> None:
    assert cost_of(None, Usage(1, 1)) is None
    assert cost_of(DEAR, None) is None
    assert cost_of(FREE, None) == 0
    assert total([Decimal(1), None]) is None
    assert total([]) == 0
    assert Price(Decimal(10), Decimal(0), Decimal(1)).of(Usage(1_000_000, 0, 400_000)) == Decimal("6.4")


@pytest.mark.parametrize(
    ("cost_usd", "usage"),
    [(cents(-100), Usage(-1, 5)), (Decimal("NaN"), Usage(5, -1)), (Decimal("Infinity"), Usage(-9, -9))],
)
async def test_impossible_usage_counts_at_its_bound(cost_usd: Decimal, usage: Usage) -> None:
    ledger = BudgetLedger(Budget(max_cost_usd=cents(100)))
    async with ledger.hold(DEAR, 1_000, 100, "a") as hold:
        await ledger.settle(hold, cost_usd, usage)
    assert (ledger.spent_usd, ledger.spent_tokens) == (Decimal("0.02"), 1_100)


async def test_a_ledger_holds_in_its_parent_which_may_permit_less() -> None:
    account = BudgetLedger(Budget(max_tokens=300))
    run = BudgetLedger(Budget(max_tokens=1000), parent=account)
    async with run.hold(FREE, 100, 4_096, "a") as hold:
        assert (hold.max_output_tokens, account.on_hold_tokens) == (200, 300)
        await run.settle(hold, Decimal(0), Usage(100, 20))
    assert (run.spent_tokens, account.spent_tokens) == (120, 120)
    assert run.holds == account.holds == []


async def test_tokens_that_a_parent_does_not_permit_are_free_for_other_steps() -> None:
    account = BudgetLedger(Budget(max_tokens=300))
    run = BudgetLedger(Budget(max_cost_usd=cents(120), max_tokens=1000), parent=account)
    async with run.hold(Price(Decimal(0), Decimal(1_000)), 100, 900, "a") as hold:
        assert (hold.max_output_tokens, run.on_hold_tokens, run.on_hold_usd) == (200, 300, cents(20))
    assert (run.spent_tokens, run.spent_usd, account.spent_usd) == (300, cents(20), cents(20))


async def test_a_parent_without_budget_rejects_the_call_and_nothing_is_spent() -> None:
    account = BudgetLedger(Budget(max_tokens=50))
    run = BudgetLedger(Budget(max_tokens=1000), parent=account)
    with pytest.raises(BudgetExceeded):
        async with run.hold(FREE, 100, 10, "a"):
            pass
    assert (run.spent_tokens, run.holds, account.spent_tokens) == (0, [], 0)


async def test_a_call_cancelled_while_it_waits_for_the_parent_spends_nothing() -> None:
    account = BudgetLedger(Budget(max_tokens=200))
    run = BudgetLedger(parent=account)

    async def wait() -> None:
        async with run.hold(FREE, 100, 100, "a"):
            pass

    async with account.hold(FREE, 100, 100, "another run"):
        waiting = asyncio.create_task(wait())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert (run.spent_tokens, run.holds) == (0, [])


async def test_a_cancelled_call_is_spent_in_full_in_both_ledgers() -> None:
    account = BudgetLedger()
    run = BudgetLedger(parent=account)
    async with run.hold(FREE, 100, 50, "a"):
        pass
    assert (run.spent_tokens, account.spent_tokens) == (150, 150)
