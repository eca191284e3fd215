"""Run records in a real database: read on every replica, listed without texts, and marked lost with their replica."""

import asyncio
import time
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace
from sqlalchemy import text

from conductor.errors import StoreUnavailable
from conductor.model.messages import Message
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Usage
from conductor.plan.plan import Step
from conductor.run.events import AnswerDelta, PlanStarted, RunFinished, StepFinished, StepPlanned, StepStarted
from conductor.run.fold import fold
from conductor.run.record import NO_ACCOUNT, Account, Record, RunRecords
from conductor.run.run import end_task
from conductor.run.task import Task
from serving.accounts.caller import ANONYMOUS, DEFAULT_SCOPES, Caller
from serving.database.address import Address, sqlite_address
from serving.store import journal
from serving.store.content import for_list, with_question
from serving.store.database_store import DatabaseStore
from serving.store.journal import BATCH_S
from serving.store.rows import Item
from serving.store.run_filter import RunFilter
from serving.store.store import StoreListener
from tests.databases import Postgres
from tests.serving.api.served import scripted, team
from tests.serving.store.stores import open_stores, replicas
from tests.states import until

pytestmark = pytest.mark.postgresql

MINE, OTHERS, ALONE = Account("k1", "t1"), Account("k2", "t2"), Account("k3")
RESULT = CallResult("Secret words. \ud800\x00", "a", "m", Usage(10, 20), Decimal("0.5"), FinishReason.STOP)


def begun(id: str, created: float = 1.0, account: Account = MINE, owner: str = "") -> Record:
    return Record(
        id,
        Task((Message.of("user", "Secret?"),), model="mini"),
        created,
        ("a",),
        owner=owner,
        account=account,
    )


EVENTS = (
    PlanStarted(0.1, 0, 0, "conductor", "conductor", (Message.of("user", "Plan: Secret?"),)),
    StepPlanned(0.2, 0, 0, Step("a", "Find the secret.", ())),
    StepStarted(0.3, 0, 0, (Message.of("user", "Secret?"),)),
    StepFinished(0.4, 0, 0, RESULT),
    AnswerDelta(0.5, "Secret"),
    AnswerDelta(0.5, " words."),
    RunFinished(0.6, "Secret words.", FinishReason.STOP),
)


async def tell(store: DatabaseStore, record: Record, n: int = len(EVENTS)) -> Record:
    """Store the first `n` events of a run, and return its record at that point."""
    record = replace(record, owner=store.owner)
    for event in EVENTS[:n]:
        record = fold(record, [event])
        store.note(record, record.seq, event)
    if record.status != "running":
        await store.put(RunRecords(record))
    return record


class RecordingListener(StoreListener):
    def __init__(self) -> None:
        self.seqs, self.runs = list[int](), list[str]()

    def on_items(self, id: str, items: Sequence[Item]) -> None:
        self.seqs += [item.seq for item in items]
        self.runs.append(id)


async def ids(
    store: DatabaseStore, caller: Caller = ANONYMOUS, limit: int = 100, **before: object
) -> list[str]:
    return [run.record.id for run in (await store.newest(limit, caller, **before)).runs]  # type: ignore[arg-type]


async def test_another_replica_reads_an_unchanged_record(store_address: Address) -> None:
    async with open_stores(store_address) as (_, one), open_stores(store_address) as (_, other):
        record = await tell(one, begun("wf_1"))
        assert await one.get("wf_1") == RunRecords(record), "also before it is written"
        await one.aclose()
        assert await other.get("wf_1") == RunRecords(record)
        assert (await other.newest(10, ANONYMOUS)).runs == [for_list(RunRecords(record))]
        assert await other.get("wf_2") is None


async def test_a_list_loads_no_bodies_and_shows_only_the_question(store_address: Address) -> None:
    async with open_stores(store_address) as (_, one), open_stores(store_address) as (store, other):
        await tell(one, begun("wf_1"))
        await one.aclose()
        async with (await store.database()).writing() as connection:
            await connection.exec_driver_sql("UPDATE run SET body = NULL")
            await connection.exec_driver_sql("DELETE FROM run_event")
        (run,) = (await other.newest(10, ANONYMOUS)).runs
        assert (run.record.cost_usd, run.record.usage) == (Decimal("0.5"), Usage(10, 20))
        assert [message.text for message in run.record.task.conversation] == ["Secret?"]
        numbers = await other.get("wf_1")
        assert numbers is not None, "numbers are left where the texts were removed"
        assert "ecret" not in repr(numbers)
        assert run == with_question(numbers, "Secret?")


async def test_lists_are_paged_by_start_time_and_limited_to_the_callers_team(
    store_address: Address,
) -> None:
    async with open_stores(store_address) as (_, store):
        accounts = {"a": MINE, "b": OTHERS, "c": MINE, "d": ALONE, "e": MINE, "f": MINE}
        for n, (id, account) in enumerate(accounts.items()):
            await tell(store, begun(id, 1.0 + n // 2, account))
        await store.aclose()
        mine = Caller(Account("k9", "t1"), DEFAULT_SCOPES)
        assert await ids(store, mine) == ["f", "e", "c", "a"]
        assert await ids(store, Caller(ALONE, DEFAULT_SCOPES)) == ["d"]
        assert await ids(store, Caller(Account("k9"), DEFAULT_SCOPES)) == []
        assert await ids(store) == ["f", "e", "d", "c", "b", "a"]
        assert await ids(store, limit=2) == ["f", "e"]
        assert await ids(store, limit=2, before=(3_000_000, "e")) == ["d", "c"]
        assert await ids(store, mine, before=(3_000_000, "f")) == ["e", "c", "a"]


async def test_another_replica_reads_events_while_the_run_continues(store_address: Address) -> None:
    async with open_stores(store_address) as (_, one), open_stores(store_address) as (_, other):
        record = await tell(one, begun("wf_1"), 4)
        await until_written(other, 4)
        page = await other.events("wf_1", 0)
        assert ([item.event for item in page.items], page.is_over) == ([*EVENTS[:4]], False)
        assert [item.seq for item in (await other.events("wf_1", 2)).items] == [3, 4]
        under_way = await other.get("wf_1")
        assert under_way == RunRecords(record)
        assert [run.record.status for run in (await other.newest(1, ANONYMOUS)).runs] == ["running"]
        for event in EVENTS[4:]:
            record = fold(record, [event])
            one.note(record, record.seq, event)
        await one.put(RunRecords(record))
        await one.aclose()
        page = await other.events("wf_1", 4)
        assert ([item.event for item in page.items], page.is_over) == ([EVENTS[-1]], True), (
            "no text of a run that is not kept"
        )


COSTS_70_CENTS = RunFilter(min_cost_usd=Decimal("0.7"), max_cost_usd=Decimal("0.7"))


async def until_written(store: DatabaseStore, n: int) -> None:
    while (page := await store.events("wf_1", 0)) and len(page.items) < n:
        await asyncio.sleep(0.01)


async def test_a_lost_run_costs_what_the_ledger_states_even_without_its_last_events(
    store_address: Address,
) -> None:
    paid = """INSERT INTO ledger (kind, run_id, key_id, day, month, amount, exact, above_hold, at_us)
        VALUES ('call', 'wf_1', 'k', 1, 1, 700000000000, 1, 0, 1)"""
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        await tell(one, begun("wf_1"), 4)
        await until_written(other, 4)
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql(paid)
            await connection.exec_driver_sql("UPDATE replica SET lease_until_us = 1")
        assert await other.sweep() == 1
        assert [
            run.record.id for run in (await other.newest(9, ANONYMOUS, run_filter=COSTS_70_CENTS)).runs
        ] == ["wf_1"]


@pytest.mark.parametrize(
    ("n_events", "entries", "cost_usd", "is_bound"),
    [
        (3, None, None, False),  # without a key, no ledger knows the cost of the open call
        (1, None, None, False),
        (3, [], "0", False),  # the worker is free
        (3, [("lost", 0.7)], "0.7", True),
        (3, [("lost", 0.7), ("correction", -0.6)], "0.1", True),
        (4, [("call", 0.5)], "0.5", False),  # the record equals the charge
        (4, [("call", 0.5), ("lost", 0.2)], "0.7", True),
        (1, [("lost", 0.3)], "0.3", True),  # during planning
    ],
)
async def test_a_lost_run_shows_later_charges_of_the_ledger(
    store_address: Address,
    n_events: int,
    entries: list[tuple[str, float]] | None,
    cost_usd: str | None,
    is_bound: bool,
) -> None:
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        account = NO_ACCOUNT if entries is None else MINE
        record = replace(begun("wf_1", account=account), owner=one.owner)
        for event in EVENTS[:n_events]:
            record = fold(record, [event])
            one.note(record, record.seq, event)
        await until_written(other, n_events)
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql("UPDATE replica SET lease_until_us = 1")
        assert await other.sweep() == 1
        async with (await dying.database()).writing() as connection:  # its holds are swept later
            for n, (kind, usd) in enumerate(entries or ()):
                await connection.exec_driver_sql(
                    f"""INSERT INTO ledger (hold_id, kind, run_id, key_id, day, month, amount, exact, above_hold, at_us)
                    VALUES ('h{n}', '{kind}', 'wf_1', 'k', 1, 1, {int(usd * 1e12)}, 0, 0, 1)"""
                )
        read = await other.get("wf_1")
        (listed,) = (await other.newest(9, ANONYMOUS)).runs
        for records in (read, listed):
            assert records is not None
            shown = records.record.cost_usd
            assert (None if shown is None else f"{shown.normalize():f}", records.record.cost_is_bound) == (cost_usd, is_bound)  # fmt: skip


async def test_a_dead_replicas_run_is_lost_and_keeps_its_costs(store_address: Address) -> None:
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        await tell(one, begun("wf_1"), 4)
        await tell(one, begun("wf_2"))
        await until_written(other, 4)
        assert await other.sweep() == 0
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql(
                f"UPDATE replica SET lease_until_us = 1 WHERE id = '{one.owner}'"
            )
        assert await other.sweep() == 1
        lost = await other.get("wf_1")
        assert lost is not None
        assert (lost.record.status, lost.record.cost_usd) == ("lost", Decimal("0.5"))
        assert lost.record.steps[0].result == RESULT
        listed = {run.record.id: run.record.status for run in (await other.newest(2, ANONYMOUS)).runs}
        assert listed == {"wf_1": "lost", "wf_2": "finished"}
        # it was only frozen, and ends its run after all
        record = fold(begun("wf_1", owner=one.owner), EVENTS)
        await one.put(RunRecords(record))
        await one.aclose()
        assert await other.get("wf_1") == RunRecords(record)


async def test_runs_that_wait_for_the_store_can_be_read_locally(postgres: Postgres) -> None:
    async with open_stores(await asyncio.to_thread(postgres.make_database)) as (_, store):
        await tell(store, begun("wf_1"))
        await store.aclose()
        await asyncio.to_thread(postgres.stop)
        try:
            record = await tell(store, begun("wf_2"))
            assert await store.get("wf_2") == RunRecords(record)
        finally:
            await asyncio.to_thread(postgres.start)
        assert await store.get("wf_2") == RunRecords(record)
        await store.aclose()
        assert not list(store.waiting())
        assert await ids(store) == ["wf_2", "wf_1"]


async def test_the_first_run_creates_the_database_file(tmp_path: Path) -> None:
    address = sqlite_address(tmp_path / "data" / "podium.db")
    async with replicas(address, n=1) as (one,):
        assert (await one.api.http.get("/v1/workflows")).json()["data"] == []
        assert (await one.api.http.get("/v1/workflows/wf_1")).status_code == 404
        assert not address.path.exists()
        await one.api.ok()
        await until(address.path.exists)


async def test_two_routers_show_each_others_runs(store_address: Address) -> None:
    settings = team(workers=[scripted("a", "One."), scripted("b", "Two."), scripted("c")])
    async with replicas(store_address, settings) as (one, other):
        ids = [(await router.api.ok())["podium"]["workflow_id"] for router in (one, other, one)]
        await one.records.aclose()
        await other.records.aclose()
        for router in (one, other):
            listed = (await router.api.http.get("/v1/workflows?limit=2")).json()
            assert ([run["id"] for run in listed["data"]], listed["has_more"]) == ([ids[2], ids[1]], True)
            rest = (await router.api.http.get(f"/v1/workflows?after={ids[1]}")).json()
            assert ([run["id"] for run in rest["data"]], rest["has_more"]) == ([ids[0]], False)
            assert [(await router.api.record(id))["answer"] for id in ids] == ["Two."] * 3
        assert (await one.api.http.get("/v1/workflows?after=wf_9")).status_code == 404


async def test_the_listener_is_notified_once_a_resumable_event_is_written(store_address: Address) -> None:
    heard = RecordingListener()
    async with open_stores(store_address, listener=heard) as (store, one):
        one.keep("wf_1")
        record = await tell(one, begun("wf_1"), 2)
        await until(lambda: heard.seqs == [1, 2], "the first items are written")
        async with (await store.database()).writing() as connection:
            await connection.execute(text("UPDATE run SET kept = kept"))  # so that no further writes reach it
            record = fold(record, [EVENTS[2]])
            one.note(record, record.seq, EVENTS[2])
            await asyncio.sleep(3 * BATCH_S)
            assert heard.seqs == [1, 2]
        await until(lambda: heard.seqs == [1, 2, 3], "the next is written")


async def test_new_runs_are_written_before_events_of_others(store_address: Address) -> None:
    heard = RecordingListener()
    async with open_stores(store_address, listener=heard) as (_, one):
        run_ids = heard.runs
        records = [await tell(one, begun(f"wf_{n}"), 1) for n in range(20)]
        await until(lambda: len(run_ids) == len(records), "their beginnings are packed")
        for record in records:
            one.note(fold(record, [EVENTS[1]]), 2, EVENTS[1])
        await tell(one, begun("wf_new"), 1)
        await until(lambda: len(run_ids) == 2 * len(records) + 1, "all of it is packed")
        assert run_ids[len(records)] == "wf_new"


async def test_a_background_run_is_accepted_once_another_replica_could_resume_it(
    store_address: Address,
) -> None:
    async with replicas(store_address, team()) as (one, other):
        for _ in range(5):
            answer = await one.api.post(background=True)
            assert answer.status_code == 202
            rows = await other.rows("SELECT kept FROM run WHERE id = :id", id=answer.json()["id"])
            assert [each[0] for each in rows] == [1]


@pytest.mark.real_time
async def test_new_runs_are_written_soon_although_the_loop_is_busy(store_address: Address) -> None:
    turns, heard = 0, RecordingListener()

    async def hold_up() -> None:
        nonlocal turns
        while True:
            turns += 1
            time.sleep(0.03)  # noqa: ASYNC251 (as hundreds of streams do)
            await asyncio.sleep(0)

    async with open_stores(store_address, listener=heard) as (_, one):
        await tell(one, begun("wf_first"), 1)
        await one.wait_until_written("wf_first")  # opens the database
        heard.runs.clear()
        for n in range(150):
            await tell(one, begun(f"wf_{n}"), 1)
        holding = asyncio.create_task(hold_up())
        try:
            await until(lambda: len(set(heard.runs)) == 150, "all are packed")
        finally:
            await end_task(holding)
    assert turns < 100, turns  # hundreds if each pause is a timer


async def test_a_runs_end_is_written_although_many_new_runs_arrive(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal, "AT_ONCE", 4)
    heard = RecordingListener()
    async with open_stores(store_address, listener=heard) as (_, one):
        record = await tell(one, begun("wf_old"), 1)
        await one.wait_until_written("wf_old")
        run_ids = heard.runs
        run_ids.clear()
        one.note(fold(record, [EVENTS[1]]), 2, EVENTS[1])
        for n in range(20):
            await tell(one, begun(f"wf_{n}"), 1)
        await until(lambda: "wf_old" in run_ids, "what goes on is packed")
        assert run_ids.index("wf_old") < 4


@pytest.mark.parametrize("how", ["waits for tools", "is dropped"])
async def test_waiting_for_a_run_that_left_the_journal_fails_immediately(
    store_address: Address, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(journal, "BATCH_S", 60.0)
    async with open_stores(store_address) as (_, one):
        one.keep("wf_1")
        record = await tell(one, begun("wf_1"), 1)
        waiting = asyncio.create_task(one.wait_until_written("wf_1"))
        await asyncio.sleep(0)
        if how == "is dropped":
            one.forget("wf_1")
        else:
            await one.suspend(RunRecords(replace(record, status="waiting")), 10.0)
        async with asyncio.timeout(1):
            if how == "is dropped":
                with pytest.raises(StoreUnavailable):
                    await waiting
            else:
                await waiting
