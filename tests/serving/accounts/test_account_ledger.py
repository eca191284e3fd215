"""Draws of a run on its key and its team, in real databases."""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from conductor.errors import BudgetExceeded, StoreUnavailable
from conductor.model.messages import Message
from conductor.model.usage import FREE, Price, Usage, cost_of
from conductor.model.worker import PoolMember
from conductor.run.ledger import LEAST_ANSWER_TOKENS, Budget, BudgetLedger
from conductor.run.lifecycle import open_run
from conductor.run.task import Task
from conductor.run.team import Team
from serving.accounts.account_ledger import AccountLedger
from serving.accounts.budget_limits import Spending, read_spending
from serving.accounts.hold import key_subject
from serving.accounts.ledger_store import LedgerStore
from serving.database.address import Address
from tests.conductor.team import Player, a_plan
from tests.databases import make_address
from tests.serving.accounts.ledgers import CENT, Ledgers, open_ledgers

pytestmark = pytest.mark.postgresql

A_CENT_A_TOKEN = Price(Decimal(10_000), Decimal(10_000))
PRICES = (
    FREE,
    A_CENT_A_TOKEN,
    Price(Decimal(5_000), Decimal(20_000), Decimal(500)),
    Price(Decimal(30_000), Decimal(0)),
    None,
)
ABSURD = [Decimal(-1), Decimal("NaN"), Decimal("Infinity"), Decimal(10) ** 30, None]


@pytest.fixture
async def ledgers(store_address: Address) -> AsyncGenerator[Ledgers]:
    async with open_ledgers(store_address) as opened:
        yield opened
        await opened.see_no_fault()


def drawn_on(ledgers: Ledgers, wait_s: float = 0.3) -> AccountLedger:
    return AccountLedger(
        ledgers.store, ledgers.key_id, ledgers.team_id, f"wf_{uuid.uuid4().hex}", wait_s=wait_s
    )


async def settled(ledgers: Ledgers) -> tuple[int, int]:
    """Return cents spent and held once queued bills are written. Voiding a hold waits in the same queue."""
    await ledgers.store.void(ledgers.request(0))
    return await ledgers.cents()


async def test_a_call_is_held_at_its_maximum_and_settled_at_its_cost(ledgers: Ledgers) -> None:
    ledger = drawn_on(ledgers)
    async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear") as hold:
        assert hold.max_output_tokens == 200
        assert await ledgers.cents() == (0, 300)
        await ledger.settle(hold, 150 * CENT, Usage(100, 50, 20))
    assert await settled(ledgers) == (150, 0)
    assert await ledgers.entries() == [("call", 150, 1, 0)]


@pytest.mark.parametrize("cost_usd", ABSURD, ids=str)
async def test_an_unknown_cost_settles_at_the_held_amount(ledgers: Ledgers, cost_usd: Decimal | None) -> None:
    ledger = drawn_on(ledgers)
    async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear") as hold:
        await ledger.settle(hold, cost_usd, Usage(-5, 10**30))
    assert await settled(ledgers) == (300, 0)
    assert await ledgers.entries() == [("call", 300, 0, 0)]


async def test_an_unsettled_call_is_spent_in_full_and_a_higher_bill_is_not_reduced(ledgers: Ledgers) -> None:
    ledger = drawn_on(ledgers)
    with pytest.raises(ValueError, match="cut"):
        async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear"):
            raise ValueError("cut")
    async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear") as hold:
        await ledger.settle(hold, 720 * CENT, Usage(100, 620))
    assert await settled(ledgers) == (1020, 0)
    assert await ledgers.entries() == [("call", 300, 0, 0), ("call", 720, 1, 1)]


async def test_an_answer_is_limited_to_the_remaining_budget_or_rejected(
    ledgers: Ledgers,
) -> None:
    await ledgers.set_caps(1000, 250)
    ledger = drawn_on(ledgers)
    async with ledger.hold(A_CENT_A_TOKEN, 100, 500, "dear") as hold:
        assert hold.max_output_tokens == 150
        assert await ledgers.cents() == (0, 250)
        await ledger.settle(hold, 187 * CENT, None)
    with pytest.raises(BudgetExceeded) as caught:
        async with ledger.hold(A_CENT_A_TOKEN, 0, 500, "dear"):
            raise AssertionError("63 tokens are no answer")
    assert str(caught.value) == (
        "A call to dear could cost $5 ($0.64 with the shortest answer), which exceeds the rest of the team's budget for today ("
        "spent: $1.87, held: $0, limit: $2.5). "
        "Raise the team's budget, or wait for the next day (UTC)."
    )
    assert not caught.value.retryable
    async with ledger.hold(A_CENT_A_TOKEN, 0, 60, "dear") as hold:
        assert hold.max_output_tokens == 60, "a short answer was all that was asked for"


async def test_a_call_waits_for_another_runs_hold_and_then_fails_as_retryable(
    ledgers: Ledgers,
) -> None:
    await ledgers.set_caps(300)
    one, other = drawn_on(ledgers), drawn_on(ledgers)
    async with one.hold(A_CENT_A_TOKEN, 100, 200, "dear") as hold:
        with pytest.raises(BudgetExceeded, match="will release it") as caught:
            async with other.hold(A_CENT_A_TOKEN, 100, 100, "dear"):
                raise AssertionError("all is held")
        assert caught.value.retryable
        assert vars(caught.value)["retry_after_s"] > 0
        waiting = asyncio.create_task(
            drawn_on(ledgers, 60).hold(A_CENT_A_TOKEN, 100, 100, "dear").__aenter__()
        )
        await one.settle(hold, 10 * CENT, None)
    assert (await waiting).max_output_tokens == 100


async def test_steps_of_one_run_wait_for_each_other_without_a_limit(ledgers: Ledgers) -> None:
    await ledgers.set_caps(300)
    ledger = drawn_on(ledgers, wait_s=0)
    async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear") as hold:
        second = ledger.hold(A_CENT_A_TOKEN, 100, 100, "dear")
        waiting = asyncio.create_task(second.__aenter__())
        await asyncio.sleep(0.25)
        assert not waiting.done()
        await ledger.settle(hold, 10 * CENT, None)
    assert (await waiting).max_output_tokens == 100
    await second.__aexit__(None, None, None)


async def test_a_cancelled_wait_holds_nothing(ledgers: Ledgers) -> None:
    await ledgers.set_caps(100)
    ledger = drawn_on(ledgers, 60)
    async with ledger.hold(A_CENT_A_TOKEN, 0, 100, "dear") as hold:
        for turns in (0, 1, 3, 100):
            waiting = asyncio.create_task(ledger.hold(A_CENT_A_TOKEN, 0, 100, "dear").__aenter__())
            for _ in range(turns):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting])
        assert await settled(ledgers) == (0, 100)
        await ledger.settle(hold, Decimal(0), Usage())
    assert await settled(ledgers) == (0, 0)


async def test_a_call_cancelled_during_its_hold_releases_it(ledgers: Ledgers) -> None:
    ledger = drawn_on(ledgers)
    await ledgers.store.hold(ledgers.request(0))
    async with ledgers.windows_locked():
        attempt = asyncio.create_task(ledger.hold(A_CENT_A_TOKEN, 0, 100, "dear").__aenter__())
        await asyncio.sleep(0.1)
        attempt.cancel()
        await asyncio.wait([attempt])
    assert await settled(ledgers) == (0, 0)
    assert await ledgers.states() == ["open", "voided", "voided"]


async def test_an_unknown_price_is_rejected_under_a_budget_and_otherwise_entered_as_unknown(
    ledgers: Ledgers,
) -> None:
    ledger = drawn_on(ledgers)
    async with ledger.hold(None, 100, 200, "odd") as hold:
        assert hold.max_output_tokens == 200
    assert await settled(ledgers) == (0, 0)
    assert await ledgers.entries() == [("call", 0, 0, 0)]
    await ledgers.set_caps(None, 100)
    with pytest.raises(
        BudgetExceeded,
        match=r"The price of odd .* the team's budget for today cannot be enforced\. Set `price`",
    ):
        async with ledger.hold(None, 100, 200, "odd"):
            raise AssertionError("not under a budget")


async def test_a_free_call_does_not_query_the_store() -> None:
    away = LedgerStore(Address("postgresql", "away", "postgresql://x@127.0.0.1:1/x"))
    ledger = AccountLedger(away, "k", None, "wf")
    async with ledger.hold(FREE, 100, 200, "own") as hold:
        await ledger.settle(hold, Decimal(0), Usage(100, 200))
    with pytest.raises(StoreUnavailable):
        async with ledger.hold(A_CENT_A_TOKEN, 100, 200, "dear"):
            raise AssertionError("its spending would be known to nobody")


async def test_a_free_workers_reported_cost_is_entered_even_over_the_budget(
    ledgers: Ledgers,
) -> None:
    await ledgers.set_caps(100)
    ledger = drawn_on(ledgers)
    for cost_usd in (Decimal(0), *ABSURD, 250 * CENT):
        async with ledger.hold(FREE, 100, 200, "own") as hold:
            await ledger.settle(hold, cost_usd, Usage(100, 50))
    async with ledger.hold(FREE, 100, 200, "own"):
        assert await settled(ledgers) == (250, 0)
    assert await ledgers.entries() == [("call", 250, 1, 1)]


async def test_calls_can_continue_without_the_store_and_are_entered_later(
    ledgers: Ledgers, store_address: Address
) -> None:
    await ledgers.set_caps(50)
    without_lease = LedgerStore(store_address)
    ledger = AccountLedger(without_lease, ledgers.key_id, ledgers.team_id, "wf", refuses_when_away=False)
    for cost_usd in (70 * CENT, None):
        async with ledger.hold(A_CENT_A_TOKEN, 0, 100, "dear") as hold:
            await ledger.settle(hold, cost_usd, None)
    await without_lease.__aexit__()
    assert await settled(ledgers) == (170, 0)
    assert await ledgers.entries() == [("call", 70, 1, 0), ("call", 100, 0, 0)]


async def test_a_run_is_limited_by_its_own_budget_and_its_accounts(ledgers: Ledgers) -> None:
    """One plan and two workers, one of which fails. The costs of the record equal those of the ledger."""
    await ledgers.set_caps(10_000)
    price = Price(Decimal(10), Decimal(100))
    players = [
        Player("a", ["one", Usage(40, 7)], price=price),
        Player("b", ["two", Usage(50, 9)], price=price),
    ]
    pool = {
        each.name: PoolMember(each.name, each, price=price, worst_price=price, max_output_tokens=500)
        for each in players
    }
    task = Task(
        conversation=(Message.of("user", "?"),),
        plan=a_plan(("a", ()), ("b", (0,))),
        budget=Budget(Decimal(5)),
    )
    ledger = drawn_on(ledgers)
    async with open_run(Team(None, pool), task, ledger=ledger) as run:
        record = [event async for event in run.events()] and run.record
    await ledgers.store.void(ledgers.request(0))
    (today, _) = await read(ledgers)
    assert record.cost_usd == today.spent_usd == price.of(Usage(90, 16))
    assert today.held_usd == 0


async def read(ledgers: Ledgers) -> list[Spending]:
    return await read_spending(ledgers.database, key_subject(ledgers.key_id))


@dataclass(frozen=True)
class WantedCall:
    """A call of a step, and how it ends."""

    run: int
    price: Price | None
    input_tokens: int
    max_output_tokens: int
    used: float
    """Share of its hold that the call spends."""
    ending: str


ASKS = st.builds(
    WantedCall,
    run=st.integers(0, 2),
    price=st.sampled_from(PRICES),
    input_tokens=st.integers(0, 200),
    max_output_tokens=st.integers(1, 300),
    used=st.floats(0, 1),
    ending=st.sampled_from(["settle", "settle", "unknown", "raise", "cancel", "leave"]),
)
CAPS = st.none() | st.integers(0, 1_000)


@pytest.fixture(scope="module", params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def one_address(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Address:
    """Return one database for all examples. Each example has its own key."""
    postgres = request.getfixturevalue("postgres") if request.param == "postgresql" else None
    return make_address(tmp_path_factory.mktemp("store"), postgres)


@given(st.lists(ASKS, max_size=8), CAPS, CAPS, CAPS)
@settings(phases=[Phase.generate])  # an example takes 0.1 s, so do not shrink
def test_no_cap_is_exceeded_and_every_call_is_entered_once(
    one_address: Address,
    calls: list[WantedCall],
    key_cap: int | None,
    team_cap: int | None,
    run_cap: int | None,
) -> None:
    async def everyone() -> None:
        async with open_ledgers(one_address) as ledgers:
            await ledgers.set_caps(key_cap, team_cap)
            budget = Budget(None if run_cap is None else run_cap * CENT)
            runs = [BudgetLedger(budget, parent=drawn_on(ledgers, 0.02)) for _ in range(3)]

            async def inside() -> None:
                today = (await read(ledgers))[0]
                cap = min((cap for cap in (key_cap, team_cap) if cap is not None), default=None)
                assert cap is None or today.spent_usd + today.held_usd <= cap * CENT

            costs = await asyncio.gather(*(make(one, runs[one.run], inside) for one in calls))
            await ledgers.store.void(ledgers.request(0))
            today = (await read(ledgers))[0]
            assert (today.spent_usd, today.held_usd) == (sum(costs), 0)
            assert sum(run.spent_usd for run in runs) == sum(costs)
            await ledgers.see_no_fault()

    asyncio.run(everyone())


async def make(one: WantedCall, ledger: BudgetLedger, inside: Callable[[], Awaitable[None]]) -> Decimal:
    async def call() -> None:
        async with ledger.hold(one.price, one.input_tokens, one.max_output_tokens, "dear") as hold:
            await inside()
            assert (
                min(LEAST_ANSWER_TOKENS, one.max_output_tokens)
                <= hold.max_output_tokens
                <= one.max_output_tokens
            )
            usage = Usage(int(one.input_tokens * one.used), int(hold.max_output_tokens * one.used))
            counted.append(hold.cost_usd if one.price else Decimal(0))
            match one.ending:
                case "settle":
                    await ledger.settle(hold, cost_of(one.price, usage), usage)
                    counted[:] = [cost_of(one.price, usage) or Decimal(0)]
                case "unknown":
                    await ledger.settle(hold, None, usage)
                case "raise":
                    raise ValueError
                case "cancel":
                    asyncio.current_task().cancel()  # type: ignore[union-attr]
                    await asyncio.sleep(0)
                case _:
                    pass

    counted: list[Decimal] = []
    await asyncio.wait([task := asyncio.create_task(call())])
    assert task.cancelled() or isinstance(task.exception(), ValueError | BudgetExceeded | None)
    return sum(counted, Decimal(0))
