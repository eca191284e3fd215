"""Holds, bills and the sweep, on both databases."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, text

from conductor.errors import StoreUnavailable
from serving.accounts.hold import Entry
from serving.accounts.hold_statements import MAKE_WINDOWS
from serving.accounts.ledger_lines import adjust
from serving.accounts.ledger_store import LedgerStore
from serving.accounts.money import to_pico
from serving.accounts.replica_store import MOST_READS, ReplicaStore
from serving.database.address import Address
from serving.database.database import Database
from serving.database.schema import ledger
from tests.databases import Postgres, make_store
from tests.serving.accounts.ledgers import CENT, Ledgers, bill, open_ledgers
from tests.states import until

pytestmark = pytest.mark.postgresql


@pytest.fixture
async def ledgers(store_address: Address) -> AsyncGenerator[Ledgers]:
    async with open_ledgers(store_address) as opened:
        yield opened
        await opened.see_no_fault()


async def test_a_hold_is_replaced_by_its_bill_once(ledgers: Ledgers) -> None:
    request = ledgers.request(30)
    assert await ledgers.store.hold(request) is None
    assert await ledgers.store.hold(request) is None, "the same hold again is the same hold"
    assert await ledgers.cents() == (0, 30)
    for _ in range(2):
        await ledgers.store.settle(bill(request, 12))
    assert await ledgers.cents() == (12, 0)
    assert await ledgers.entries() == [("call", 12, 1, 0)]


async def test_a_hold_refused_while_a_bill_is_in_progress_is_retried(ledgers: Ledgers) -> None:
    await ledgers.set_caps(100)
    request = ledgers.request(80)
    assert await ledgers.store.hold(request) is None
    ledgers.store.settle(bill(request, 1))
    asking = [asyncio.create_task(ledgers.store.hold(ledgers.request(80))) for _ in range(2)]
    await asyncio.sleep(0)
    assert ledgers.store.writer.hurry(), "as the patience of the bill ends"
    assert [refusal is None for refusal in await asyncio.gather(*asking)] == [True, False]


async def test_a_refused_hold_is_retried_after_the_queued_bills(ledgers: Ledgers) -> None:
    await ledgers.set_caps(100)
    request = ledgers.request(80)
    assert await ledgers.store.hold(request) is None
    settled = ledgers.store.settle(bill(request, 1))
    assert not settled.done()
    assert await ledgers.store.hold(ledgers.request(80)) is None, "the earlier hold is 1 cent by now"
    assert await ledgers.cents() == (1, 80)


async def test_an_unknown_cost_is_posted_as_held_and_a_higher_one_in_full(
    ledgers: Ledgers,
) -> None:
    requests = [ledgers.request(30) for _ in range(2)]
    await asyncio.gather(*map(ledgers.store.hold, requests))
    await ledgers.store.settle(bill(requests[0], None))
    await ledgers.store.settle(bill(requests[1], 40))
    assert await ledgers.entries() == [("call", 30, 0, 0), ("call", 40, 1, 1)]
    assert await ledgers.cents() == (70, 0)


async def test_a_batch_of_holds_admits_each_that_still_fits(ledgers: Ledgers) -> None:
    await ledgers.set_caps(100)
    cents = [90, 60, 30, 20, 10]
    refusals = await asyncio.gather(*(ledgers.store.hold(ledgers.request(each)) for each in cents))
    fitting = [each for each, refusal in zip(cents, refusals, strict=True) if refusal is None]
    assert sum(fitting) <= 100 < sum(fitting) + min(set(cents) - set(fitting))
    assert await ledgers.cents() == (0, sum(fitting))
    refusal = next(refusal for refusal in refusals if refusal)
    assert (refusal.id.subject, refusal.id.period) == (f"key:{ledgers.key_id}", "day")


@pytest.mark.parametrize("path", ["at once", "exactly"])
async def test_a_hold_that_waited_sees_the_amounts_of_the_previous_one(
    ledgers: Ledgers, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ledgers.set_caps(100)
    assert await ledgers.store.hold(ledgers.request(10)) is None
    if path == "exactly":
        monkeypatch.setattr("serving.accounts.hold_statements_postgresql.hold_fitting", lambda *_: set[str]())
        # The windows exist already, and an insert would wait for the other transaction too.
        monkeypatch.setattr(MAKE_WINDOWS, "execute", lambda *_: list[object]())
    async with ledgers.windows_locked(more_cents=50):
        waiting = asyncio.create_task(ledgers.store.hold(ledgers.request(50)))
        await asyncio.sleep(0.1)
        assert not waiting.done()
    refusal = await waiting
    assert refusal is not None
    assert refusal.window.room == to_pico(40 * CENT)
    async with ledgers.windows_locked(more_cents=-50):
        pass


async def test_concurrent_holds_of_several_replicas_use_exactly_the_cap(
    ledgers: Ledgers, store_address: Address
) -> None:
    await ledgers.set_caps(30)

    async def draw(store: LedgerStore) -> int:
        return sum([await store.hold(ledgers.request(1)) is None for _ in range(12)])

    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(LedgerStore(store_address, 60)) for _ in range(4)]
        assert sum(await asyncio.gather(*map(draw, stores))) == 30
    assert await ledgers.cents() == (0, 30)


async def test_every_window_limits_holds_and_a_new_cap_applies_immediately(ledgers: Ledgers) -> None:
    first = ledgers.request(50)
    assert await ledgers.store.hold(first) is None
    await ledgers.set_caps(None, 60)
    refusal = await ledgers.store.hold(ledgers.request(11))
    assert refusal is not None
    assert refusal.id.subject == f"team:{ledgers.team_id}"
    assert await ledgers.store.hold(ledgers.request(10)) is None
    await ledgers.set_caps(None, None)
    assert await ledgers.store.hold(ledgers.request(1000)) is None


async def test_an_unknown_price_is_rejected_only_under_a_cap(ledgers: Ledgers) -> None:
    assert await ledgers.store.hold(ledgers.request(0, is_unpriced=True)) is None
    await ledgers.set_caps(1)
    assert await ledgers.store.hold(ledgers.request(0, is_unpriced=True)) is not None
    assert await ledgers.store.hold(ledgers.request(1)) is None


async def test_a_void_releases_a_hold_and_prevents_a_late_one(ledgers: Ledgers) -> None:
    early, late = ledgers.request(5), ledgers.request(7)
    await ledgers.store.hold(early)
    await asyncio.gather(ledgers.store.void(early), ledgers.store.void(late))
    assert await ledgers.cents() == (0, 0)
    await ledgers.store.hold(late)
    assert await ledgers.cents() == (0, 0), "it can never be held any more"
    assert await ledgers.states() == ["voided", "voided"]
    assert await ledgers.entries() == []


async def test_an_adjusted_entry_is_not_corrected_again_by_a_frozen_replica(
    ledgers: Ledgers, store_address: Address
) -> None:
    frozen = ledgers.request(30)
    await ledgers.store.hold(frozen)
    async with LedgerStore(store_address, 60) as other:
        await _end_lease(ledgers)
        await other.beat()
    async with ledgers.database.reading() as connection:
        (entry_id,) = (await connection.execute(select(ledger.c.id))).scalars()
    await adjust(ledgers.database, entry_id, to_pico(10 * CENT), "the invoice")
    assert await ledgers.cents() == (10, 0)
    await ledgers.store.settle(bill(frozen, 10))
    await ledgers.store.void(frozen)
    assert await ledgers.cents() == (10, 0)
    await ledgers.see_no_fault()


async def test_a_dead_replicas_holds_are_posted_in_full_and_corrected_later(
    ledgers: Ledgers, store_address: Address
) -> None:
    frozen = [ledgers.request(30) for _ in range(4)]
    await asyncio.gather(*map(ledgers.store.hold, frozen))
    async with LedgerStore(store_address, 60) as other:
        assert await other.beat() == 0, "its lease holds"
        await _end_lease(ledgers)
        assert (await other.beat(), await other.beat()) == (4, 0)
    assert await ledgers.cents() == (120, 0)
    assert await ledgers.entries() == [("lost", 30, 0, 0)] * 4
    await ledgers.see_no_fault()
    await asyncio.gather(
        ledgers.store.settle(bill(frozen[0], 10)), ledgers.store.settle(bill(frozen[1], 35)),
        ledgers.store.settle(bill(frozen[2], None)), ledgers.store.void(frozen[3]),
    )  # fmt: skip
    assert await ledgers.cents() == (75, 0)
    corrections = sorted((await ledgers.entries())[4:])
    assert corrections == [("correction", -30, 1, 0), ("correction", -20, 1, 0), ("correction", 5, 1, 1)]
    for each in frozen[:2]:
        await ledgers.store.settle(bill(each, 1))
    assert await ledgers.cents() == (75, 0), "corrected once"


async def test_a_call_without_a_hold_is_entered_once_even_over_the_cap(ledgers: Ledgers) -> None:
    await ledgers.set_caps(1)
    request = ledgers.request(30)
    for _ in range(2):
        await ledgers.store.enter(Entry(request, bill(request, 12)))
    assert await ledgers.cents() == (12, 0)
    assert await ledgers.entries() == [("call", 12, 1, 0)]


async def _end_lease(ledgers: Ledgers) -> None:
    async with ledgers.database.writing() as connection:
        await connection.execute(
            text("UPDATE replica SET lease_until_us = 1 WHERE id = :id"), {"id": ledgers.store.owner}
        )


async def test_a_closing_replica_releases_its_lease_and_writes_queued_bills(
    store_address: Address,
) -> None:
    async with open_ledgers(store_address) as ledgers:
        request = ledgers.request(3)
        async with LedgerStore(store_address, 60) as closing:
            await closing.hold(request)
            closing.settle(bill(request, 2))
            await closing.hold(replace(ledgers.request(4), owner=closing.owner))
        assert await ledgers.cents() == (2, 4), "a call that nobody settled"
        assert await ledgers.store.beat() == 1
        assert await ledgers.cents() == (6, 0)
        async with ledgers.database.reading() as connection:
            replicas = (await connection.execute(text("SELECT id FROM replica"))).scalars().all()
        assert replicas == [ledgers.store.owner]


async def test_a_replica_without_a_lease_cannot_hold(store_address: Address) -> None:
    store = LedgerStore(store_address)
    async with open_ledgers(store_address) as ledgers:
        with pytest.raises(StoreUnavailable):
            await store.hold(ledgers.request(1))


async def test_a_cancelled_hold_is_released_when_it_is_voided(ledgers: Ledgers) -> None:
    requests = [ledgers.request(1) for _ in range(8)]
    for turns, request in enumerate(requests):
        task = asyncio.create_task(ledgers.store.hold(request))
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await ledgers.store.void(request)
    assert await ledgers.cents() == (0, 0)


@pytest.fixture
def on_postgresql(postgres: Postgres, tmp_path: Path) -> Address:
    return make_store(tmp_path, postgres)


async def test_reads_leave_one_connection_for_budgets(on_postgresql: Address) -> None:
    store = ReplicaStore(on_postgresql)
    read = text("SELECT pg_advisory_xact_lock_shared(1)")
    try:
        database = await store.database()
        pool: Any = database.engine.pool
        async with Database(on_postgresql) as other, other.writing() as lock:
            await lock.execute(text("SELECT pg_advisory_xact_lock(1)"))
            reads = [asyncio.create_task(store.read(read)) for _ in range(2 * MOST_READS)]
            await until(lambda: pool.checkedout() == MOST_READS, "all places for reads are taken")
            async with database.reading() as connection:
                await connection.execute(text("SELECT 1"))
            assert not any(each.done() for each in reads)
        await asyncio.gather(*reads)
    finally:
        await store.aclose()
