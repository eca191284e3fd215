"""Which worker has a conversation's prompt cache: known to every replica, for a time, also while the store is away."""

import asyncio
from dataclasses import replace

import pytest

from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address, parse_address
from serving.database.clock import now_us
from serving.store import prompt_caches
from serving.store.prompt_caches import KEEP_PROMPT, PromptCacheRow, PromptCaches
from tests.serving.store.stores import opened

pytestmark = pytest.mark.postgresql

HOUR_US = 3_600_000_000


def row(worker: str = "a", at_us: int = 1, id: str = "c1", drop_us: int | None = None) -> PromptCacheRow:
    expiry_us = now_us() + HOUR_US if drop_us is None else drop_us
    return PromptCacheRow(id, worker, "eu", 3, "0123456789abcdef", 4_000, 120, 2, "1h", at_us, expiry_us)


async def test_a_turn_on_another_replica_finds_the_worker_of_the_last_one(store_address: Address) -> None:
    async with opened(store_address) as (one, _), opened(store_address) as (other, _):
        mine, theirs = PromptCaches(one), PromptCaches(other)
        assert await mine.find("c1") == []
        first = row()
        await mine.keep(first)
        assert await theirs.find("c1") == [first]
        newer, second = row(at_us=2), row("b", at_us=3)
        await theirs.keep(newer)
        await theirs.keep(second)
        assert {each.worker: each for each in await mine.find("c1")} == {"a": newer, "b": second}
        assert await mine.find("c2") == []


async def test_the_newest_row_wins_whatever_comes_last(store_address: Address) -> None:
    async with opened(store_address) as (store, _):
        caches = PromptCaches(store)
        newer = row(at_us=9)
        for each in (newer, row(at_us=5)):
            await caches.keep(each)
        assert await caches.find("c1") == [newer]
        writer = (await store.ledger()).writer
        await asyncio.gather(*(writer.do(KEEP_PROMPT, row(at_us=n)) for n in (7, 10, 8)))
        assert [each.written_us for each in await PromptCaches(store).find("c1")] == [10]


async def test_a_row_is_ignored_after_its_time_and_then_removed(store_address: Address) -> None:
    async with opened(store_address) as (store, records):
        caches = PromptCaches(store)
        await caches.keep(row(drop_us=now_us() - 1))
        await caches.keep(row("b"))
        assert [each.worker for each in await caches.find("c1")] == ["b"]
        assert await records.remove_old() == 1
        assert [each.worker for each in await PromptCaches(store).find("c1")] == ["b"]


async def test_what_must_not_be_stored_stays_in_memory(store_address: Address) -> None:
    async with opened(store_address) as (store, _):
        caches = PromptCaches(store)
        kept = row()
        await caches.keep(kept, stores=False)
        assert await caches.find("c1") == [kept]
        assert await PromptCaches(store).find("c1") == []


async def test_a_store_that_is_away_delays_no_turn_and_memory_remains() -> None:
    store = ReplicaStore(parse_address("postgresql://podium:x@127.0.0.1:1/x"))
    try:
        for caches in (PromptCaches(store), PromptCaches()):
            kept = row()
            async with asyncio.timeout(3 * prompt_caches.PATIENCE_S + 1):
                await caches.keep(kept)
                assert await caches.find("c1") == [kept]
    finally:
        await store.aclose()


async def test_memory_is_bounded_and_the_conversation_that_was_used_last_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(prompt_caches, "MOST_IDS", 2)
    caches = PromptCaches()
    for id in ("c1", "c2"):
        await caches.keep(row(id=id))
    await caches.find("c1")
    await caches.keep(replace(row(), id="c3"))
    assert [len(await caches.find(id)) for id in ("c1", "c2", "c3")] == [1, 0, 1]
