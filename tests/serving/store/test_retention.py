"""Retention: what the store removes over time."""

import asyncio

import openai
import pytest
from sqlalchemy import text

from conductor.run.record import Account
from serving.accounts.caller import ANONYMOUS
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address
from serving.database.clock import now_us
from serving.settings.sections import StoreSettings
from serving.store.database_store import DatabaseStore
from serving.store.retention import DAY_US, REMOVE, STEP, ContentDays, Retention
from tests.serving.api.served import team
from tests.serving.store.stores import open_stores, replicas
from tests.serving.store.test_database_store import begun, tell

pytestmark = pytest.mark.postgresql

HOUR_US = 3_600_000_000
NOW_S = 1_000 * 86_400.0
NOW_US = 1_000 * DAY_US
DAYS = {"today": 0, "week": 7, "month": 31, "year": 401}


async def shown(store: DatabaseStore) -> dict[str, bool]:
    """The runs that are left, and whether their texts are."""
    listed = [run.record.id for run in (await store.newest(100, ANONYMOUS)).runs]
    runs = {id: await store.get(id) for id in listed}
    return {id: run.has_content and bool(run.record.answer) for id, run in runs.items()}


async def test_texts_are_removed_before_numbers(store_address: Address) -> None:
    async with open_stores(store_address) as (_, store):
        for id, days in DAYS.items():
            await tell(store, begun(id, NOW_S - days * 86_400))
        await store.aclose()
        assert await store.remove_old(NOW_US) == 3
        assert await shown(store) == {"today": True, "week": True, "month": False}
        run = await store.get("month")
        assert run is not None
        assert (run.record.usage.output_tokens, run.record.cost_usd is not None) == (20, True)
        assert "ecret" not in repr(run)
        assert await store.remove_old(NOW_US) == 0


def test_a_huge_number_of_days_means_forever() -> None:
    endless = Retention.of(
        StoreSettings(content_days=1e308), NOW_US, [ContentDays("team_id", "search", 1e308)]
    )
    assert (endless.content_us, endless.of_accounts) == (NOW_US - 400 * DAY_US, (("team_id", "search", 0),))


async def test_with_unlimited_retention_nothing_is_removed(store_address: Address) -> None:
    settings = StoreSettings(content_days=None, numbers_days=None, content_bytes_per_team=None)
    async with open_stores(store_address, settings=settings) as (_, store):
        for id, days in DAYS.items():
            await tell(store, begun(id, NOW_S - days * 86_400))
        await store.aclose()
        assert await store.remove_old(NOW_US) == 0
        assert all((await shown(store)).values())


async def test_a_teams_oldest_texts_are_removed_for_newer_ones(store_address: Address) -> None:
    settings = StoreSettings(content_bytes_per_team=1, content_days=None)
    async with open_stores(store_address) as (replica, measured):
        await tell(measured, begun("measured", NOW_S - 100))
        await measured.aclose()
        one = await body_bytes(replica)
    settings = StoreSettings(content_bytes_per_team=int(2.5 * one), content_days=None)
    async with open_stores(store_address, settings=settings) as (_, store):
        for n in range(4):
            await tell(store, begun(f"mine{n}", NOW_S + n, Account("k1", "t1")))
            await tell(store, begun(f"ours{n}", NOW_S + n, Account("k2", "t1")))
        await tell(store, begun("theirs", NOW_S - 50, Account("k3", "t2")))
        await tell(store, begun("alone", NOW_S - 50, Account("k4")))
        await store.aclose()
        await store.remove_old(NOW_US + 10 * 1_000_000)
        remaining = await shown(store)
        assert {id for id, has_content in remaining.items() if has_content} == {
            "ours3",
            "mine3",
            "theirs",
            "alone",
        }
        assert len(remaining) == 11


async def body_bytes(store: ReplicaStore) -> int:
    rows = await store.read(text("SELECT body_bytes FROM run"))
    return rows[0][0]


async def test_events_are_removed_with_the_complete_record_or_the_lost_runs_texts(
    store_address: Address,
) -> None:
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        await tell(one, begun("lost", now_us() / 1e6), 4)
        await tell(one, begun("whole", now_us() / 1e6))
        while not (await other.events("lost", 0)).items:
            await asyncio.sleep(0.01)
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql("UPDATE replica SET lease_until_us = 1")
        await other.sweep()
        soon, later = now_us() + 2 * HOUR_US, now_us() + 31 * DAY_US
        await other.remove_old(soon)
        assert [len((await other.events(id, 0)).items) for id in ("lost", "whole")] == [4, 0]
        whole = await other.get("whole")
        assert whole is not None
        assert whole.has_content
        await other.remove_old(later)
        gone = await other.get("lost")
        assert gone is not None
        assert (gone.record.status, gone.has_content) == ("lost", False)


async def test_old_rows_are_removed_in_steps(store_address: Address) -> None:
    columns = "account, name, body_hash, run_id, owner, drop_us"
    rows = ", ".join(f"('k1', 'name{n}', '', 'wf_{n}', 'gone', {n})" for n in range(2 * STEP + 200))
    async with open_stores(store_address) as (ledger, store):
        async with (await ledger.database()).writing() as connection:
            await connection.exec_driver_sql(f"INSERT INTO idempotency ({columns}) VALUES {rows}")
        writer = (await ledger.ledger()).writer
        assert await writer.do(REMOVE, Retention.of(StoreSettings())) == STEP
        oldest = await ledger.read(text("SELECT min(drop_us) FROM idempotency"))
        assert oldest[0][0] == STEP
        assert await store.remove_old() == STEP + 200


async def test_a_file_expires_on_its_day(store_address: Address) -> None:
    settings = team(batches={"file_days": 3, "max_bytes_per_team": 1000}, store={"content_days": 2})
    async with replicas(store_address, settings, n=1) as (router,):
        sdk = router.api.sdk
        old = await sdk.files.create(file=("in.jsonl", b"x" * 900), purpose="batch")
        assert old.expires_at is not None
        assert old.expires_at - old.created_at == 2 * 86_400, "texts are kept no longer than any others"
        await router.change("UPDATE stored_file SET drop_us = 1")
        with pytest.raises(openai.NotFoundError):
            await sdk.files.content(old.id)
        assert [each async for each in sdk.files.list()] == []
        new = await sdk.files.create(file=("in.jsonl", b"x" * 900), purpose="batch")
        assert await router.records.remove_old() == 1
        assert await router.rows("SELECT id FROM stored_file") == [(new.id,)]
