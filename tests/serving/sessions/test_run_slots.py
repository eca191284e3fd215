"""Run slots: each run holds one until it is stored. No client learns of a run whose first write is overdue."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import orjson
import pytest
from sqlalchemy import text

from conductor.errors import Overloaded, StoreUnavailable
from conductor.model.messages import Message
from conductor.run.record import Account, Record, RunRecords
from conductor.run.run import end_task
from conductor.run.task import Task
from serving.api.app import build_api
from serving.database import database
from serving.database.address import Address, sqlite_address
from serving.sessions.run_admission import RunSlots
from serving.settings.sections import LimitSettings
from serving.store import journal as journal_module
from serving.store.journal import LATE_FOR_S, LATE_S, WRITTEN_WITHIN_S, RunJournal
from tests.serving.api.served import ASK, Json, listening, scripted, team
from tests.serving.store.stores import Replica, replicas
from tests.serving.store.test_idempotency import ask
from tests.states import until

WORDS = " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize("tier", ["default", "flex"])
async def test_a_background_run_uses_one_slot(store_address: Address, tier: str):
    settings = team(workers=[scripted("a", "Yes.")], workflows={}, limits={"max_running": 2})
    async with replicas(store_address, settings, n=1) as (one,):
        assert (await ask(one.api, model="a", service_tier=tier)).status_code == 200


async def test_as_many_background_runs_start_concurrently_as_there_are_slots(
    store_address: Address,
):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=40)], workflows={}, limits={"max_running": 10})
    async with replicas(store_address, settings, n=1) as (one,):
        answers = await asyncio.gather(*(ask(one.api, f"name {n}", model="a") for n in range(10)))
        assert [each.status_code for each in answers] == [200] * 10


async def test_joining_a_run_in_progress_needs_no_slot(store_address: Address):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=20)], workflows={}, limits={"max_running": 1})
    async with replicas(store_address, settings, n=1) as (one,):
        first = asyncio.create_task(ask(one.api, model="a"))
        await until(lambda: one.api.service.running == 1)
        assert (await one.api.post({"model": "a"})).status_code == 429, "it is full"
        assert (await ask(one.api, model="a")).json() == (await first).json()


def test_ended_but_unwritten_runs_count_towards_no_ones_share():
    limits: Any = SimpleNamespace(max_running=100)
    pool: Any = SimpleNamespace(settings=SimpleNamespace(limits=limits))
    modest, flood, n_unwritten = Account("modest"), Account("flood"), 94
    slots = RunSlots(lambda: pool, lambda: n_unwritten)
    with ExitStack() as runs:
        runs.enter_context(slots.occupy(modest))
        slots.check_share(modest, "interactive")
        n_unwritten = 0
        for _ in range(94):
            runs.enter_context(slots.occupy(flood))
        with pytest.raises(Overloaded):
            slots.check_share(flood, "interactive")
        slots.check_share(modest, "interactive")


class AwayStore:
    """Database that fails the first write and hangs at the second."""

    def __init__(self) -> None:
        self.n_writes = 0

    async def write(self, *_: object) -> None:
        self.n_writes += 1
        if self.n_writes > 1:
            await asyncio.Event().wait()
        raise StoreUnavailable("It is away.")


def ended(id: str, key_id: str = "", answer: str = "So.") -> RunRecords:
    task = Task((Message.of("user", "Why?"),))
    return RunRecords(Record(id, task, 0.0, status="finished", answer=answer, account=Account(key_id)))


@asynccontextmanager
async def away_journal(limits: LimitSettings) -> AsyncGenerator[RunJournal]:
    """Yield a journal that knows that its store is away."""
    store: Any = AwayStore()
    journal = RunJournal(store, lambda: limits)
    await journal.put(ended("wf_0"))
    await until(lambda: store.n_writes == 2, "it is tried again")
    try:
        yield journal
    finally:
        assert journal._task  # pyright: ignore[reportPrivateUsage]
        await end_task(journal._task)  # pyright: ignore[reportPrivateUsage]


async def test_runs_that_wait_for_the_store_keep_their_slots_and_bytes():
    async with away_journal(LimitSettings()) as journal:
        await journal.put(ended("wf_1", "flood", 100_000 * "x"))
        assert journal.n_unwritten == 2
        assert 100_000 < journal.unwritten_bytes()["flood"] < 110_000
        assert journal.find("wf_0")


async def test_runs_that_wait_for_the_store_are_limited_and_the_largest_key_loses_first():
    async with away_journal(LimitSettings(records=50, records_bytes=1_000_000)) as journal:
        await journal.put(ended("wf_modest", "modest"))
        for n in range(60):
            await journal.put(ended(f"wf_flood{n}", "flood", 100_000 * "x"))
            assert journal.unwritten_bytes().total() <= 1_000_000
        assert journal.find("wf_modest")
        assert journal.find("wf_flood59")
        assert not journal.find("wf_flood0")
        for n in range(60):
            await journal.put(ended(f"wf_small{n}", "flood"))
        assert journal.n_unwritten == 50
        assert journal.find("wf_modest")


async def test_without_the_store_free_runs_hold_their_slots_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = team(workers=[scripted("a", "Yes.")], workflows={}, limits={"max_running": 4})
    async with replicas(sqlite_address(tmp_path / "podium.db"), settings, n=1) as (one,):
        assert (await one.api.post({"model": "a"})).status_code == 200
        await until(lambda: not one.records.n_unwritten, "it is written")
        async with full_disk(one, monkeypatch):
            answers = [await one.api.post({"model": "a"}) for _ in range(5)]
            assert [each.status_code for each in answers] == [200] * 4 + [429]
            assert answers[-1].json()["error"]["param"] == "limits.max_running"
            assert len(one.api.worker("a").calls) == 5, "the last called nobody"
        await until(lambda: not one.records.n_unwritten, "they are written")
        assert (await one.api.post({"model": "a"})).status_code == 200
        assert len(await one.rows("SELECT id FROM run")) == 5


async def test_without_the_store_free_runs_hold_their_bytes_until_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    limits = {"max_running_bytes": 1_000_000}
    settings = team(workers=[scripted("a", "Yes.")], workflows={}, limits=limits)
    long = {"messages": [{"role": "user", "content": 300_000 * "x"}], "model": "a"}
    async with replicas(sqlite_address(tmp_path / "podium.db"), settings, n=1) as (one,):
        assert (await one.api.post(long)).status_code == 200
        await until(lambda: not one.records.n_unwritten, "it is written")
        async with full_disk(one, monkeypatch):
            answers = [await one.api.post(long) for _ in range(10)]
            assert [each.status_code for each in answers] == [200] * 3 + [429] * 7
            assert answers[-1].json()["error"]["param"] == "limits.max_running_bytes"
            assert (await one.api.post({"model": "a"})).status_code == 200, "a small one has room"
        await until(lambda: not one.records.n_unwritten, "they are written")
        assert (await one.api.post(long)).status_code == 200


BACKGROUND: dict[str, tuple[str, Json]] = {
    "a chat": ("/v1/chat/completions", ASK | {"model": "a", "podium": {"background": True}}),
    "a stream": (
        "/v1/chat/completions",
        ASK | {"model": "a", "stream": True, "podium": {"background": True}},
    ),
    "a response": ("/v1/responses", {"model": "a", "input": "Why?", "background": True}),
    "a streamed response": (
        "/v1/responses",
        {"model": "a", "input": "Why?", "background": True, "stream": True},
    ),
    "a message": (
        "/v1/messages",
        {"model": "a", "max_tokens": 99, "messages": ASK["messages"], "podium": {"background": True}},
    ),
    "a batch": (
        "/v1/batches",
        {"input_file_id": "", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    ),
}


@pytest.mark.parametrize("what", BACKGROUND)
async def test_without_the_store_no_background_run_is_accepted(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    settings = team(workers=[scripted("a", "Yes.")], workflows={})
    path, body = BACKGROUND[what]
    async with replicas(sqlite_address(tmp_path / "podium.db"), settings, n=1) as (one,):
        if "input_file_id" in body:
            line = orjson.dumps(
                {"custom_id": "1", "method": "POST", "url": body["endpoint"], "body": ASK | {"model": "a"}}
            )
            form = {"data": {"purpose": "batch"}, "files": {"file": ("a.jsonl", line)}}
            body = body | {"input_file_id": (await one.api.http.post("/v1/files", **form)).json()["id"]}  # type: ignore[arg-type]
        assert (await one.api.http.post(path, json=body)).status_code in (200, 202)
        await until(lambda: not one.records.n_unwritten and not one.api.service.running, "it is written")
        async with full_disk(one, monkeypatch):
            for _ in range(3):
                answer = await one.api.http.post(path, json=body)
                assert answer.status_code == 503, answer.text
                assert "retry-after" in answer.headers
                await until(lambda: not one.api.service.running, "nothing goes on")
        await until(lambda: not one.records.n_unwritten, "all is written")
        assert (await one.api.http.post(path, json=body)).status_code in (200, 202)


@asynccontextmanager
async def full_disk(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[None]:
    """Make the store reject all writes in the block."""
    backend, opened = (await replica.store.ledger()).writer._backend, await replica.store.database()  # pyright: ignore[reportPrivateUsage]

    async def reconnect() -> None:
        await backend.aclose()
        await opened.engine.dispose()

    with monkeypatch.context() as patch:
        for name in ("PRAGMAS", "READER_PRAGMAS"):
            patch.setattr(database, name, (*getattr(database, name), "query_only=1"))
        await reconnect()
        yield
    await reconnect()


async def whole_stream(url: str, body: Json) -> None:
    async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
        assert (await http.post("/v1/chat/completions", json=body)).content.endswith(b"[DONE]\n\n")


async def one_byte(url: str, body: Json) -> None:
    """Wait for the first byte of the stream."""
    async with (
        httpx2.AsyncClient(base_url=url, timeout=30) as http,
        http.stream("POST", "/v1/chat/completions", json=body),
    ):
        pass


@asynccontextmanager
async def hanging(address: Address, replica: Replica) -> AsyncGenerator[None]:
    """Block the writes of runs in the block."""
    async with (await replica.store.database()).writing() as connection:
        if address.kind == "postgresql":
            await connection.execute(text("LOCK TABLE run IN EXCLUSIVE MODE"))
        else:
            await connection.execute(text("DELETE FROM run WHERE id = 'none'"))
        yield


async def test_no_client_gets_output_of_a_run_whose_first_write_is_overdue(
    store_address: Address,
):
    settings = team(workers=[scripted("a", WORDS, delay_s=0.3, tokens_per_s=20)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        await one.api.post({"model": "a"})  # opens the store
        async with hanging(store_address, one):
            task = asyncio.create_task(one_byte(url, ASK | {"model": "a", "stream": True}))
            assert not (await asyncio.wait([task], timeout=1))[0]  # its first byte is due after 0.1 s
        await task


async def test_a_hanging_store_delays_one_stream_once(store_address: Address):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=10)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        await one.api.post({"model": "a"})  # opens the store
        async with hanging(store_address, one):
            async with asyncio.timeout(4 + 2 * LATE_FOR_S):
                await whole_stream(url, ASK | {"model": "a", "stream": True})
            async with asyncio.timeout(LATE_FOR_S):
                await one_byte(url, ASK | {"model": "a", "stream": True})


async def test_a_run_that_ended_before_its_first_write_is_returned_immediately(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "BATCH_S", 0.5)  # as on a busy loop
    settings = team(workers=[scripted("a", "Yes.", delay_s=2 * LATE_S)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        async with asyncio.timeout(WRITTEN_WITHIN_S / 2):
            await one_byte(url, ASK | {"model": "a", "stream": True})
