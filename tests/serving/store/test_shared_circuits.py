"""Circuits shared between routers: a worker that fails at one is skipped at the others without a failed call."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from conductor.model.call import Call
from conductor.model.messages import Message
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address, parse_address, sqlite_address
from serving.health import Health, Opening, WorkerHealth
from serving.pool import Pool, build_pool
from serving.settings.settings import parse
from serving.store.shared_circuits import SharedCircuits
from serving.workers.scripted import ScriptedWorker
from tests.databases import Postgres
from tests.serving.api.served import served, team
from tests.states import until

CALL = Call((Message.of("user", "hi"),))
UNAVAILABLE: dict[str, Any] = {"error": "unavailable"}
DOWN: dict[str, Any] = {"name": "a", "replies": [UNAVAILABLE], "fallbacks": ["b"], "retry": {"attempts": 1}}
WELL = DOWN | {"replies": ["Well."]}
INSTEAD: dict[str, Any] = {"name": "b", "replies": ["Instead."]}
RECENT_S = 600.0
WITHIN_S = 3.0
"""Time for two looks at the store on a busy machine."""


@dataclass
class Replica:
    pool: Pool
    health: Health
    store: ReplicaStore
    circuits: SharedCircuits

    @property
    def a(self) -> WorkerHealth:
        return self.pool.health["a"]

    @property
    def calls(self) -> int:
        worker = next(client for client in self.pool.clients if client.name == "a")
        assert isinstance(worker, ScriptedWorker)
        return len(worker.calls)

    async def ask(self, n: int = 1) -> str:
        answer = ""
        for _ in range(n):
            async with self.pool.members["a"].worker.open(CALL) as reply:
                answer = "".join([delta.text async for delta in reply])
        return answer

    async def execute(self, sql: str, **values: Any) -> None:
        async with (await self.store.database()).writing() as connection:
            await connection.execute(text(sql), values)

    async def rows(self) -> list[Any]:
        async with (await self.store.database()).reading() as connection:
            return list(await connection.execute(text("SELECT * FROM circuit ORDER BY worker")))


@asynccontextmanager
async def replicas(
    address: Address, *workers: dict[str, Any], patience_s: float = 60.0
) -> AsyncGenerator[list[Replica]]:
    """Yield routers over one store, each with its own worker `a`. They look at the store only on demand."""
    async with AsyncExitStack() as stack:
        routers: list[Replica] = []
        for own in workers:
            health, store = Health(), ReplicaStore(address)
            stack.push_async_callback(store.aclose)
            settings = {"workers": [{"kind": "scripted"} | each for each in (own, INSTEAD)]}
            circuits = SharedCircuits(store, health, patience_s)
            stack.push_async_callback(circuits.aclose)
            routers.append(Replica(build_pool(parse(settings), {}, {}, health), health, store, circuits))
        yield routers


@pytest.fixture
def slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep recent events recent, even on a busy machine."""
    monkeypatch.setattr("serving.health.RECENT_S", RECENT_S)


@pytest.fixture
def address(postgres: Postgres) -> Address:
    return postgres.make_database()


async def test_a_circuit_opens_and_closes_at_other_routers_within_a_second(
    address: Address, caplog: pytest.LogCaptureFixture
):
    recovers = DOWN | {"replies": [UNAVAILABLE] * 3 + ["Well."]}
    async with replicas(address, recovers, WELL) as (one, other):
        for each in (one, other):
            await each.store.database()
            each.circuits.start()
        await one.ask(3)
        await until(lambda: other.a.circuit == "open", "it is told", WITHIN_S)
        assert other.a.is_open_elsewhere
        assert other.a.skip_s == pytest.approx(one.a.skip_s, abs=0.5)
        assert (await other.ask(), other.calls) == ("Instead.", 0)
        one.a.skip_until_s = 0.0
        assert await one.ask() == "Well."
        await until(lambda: other.a.circuit == "closed", "it is told of the end, too", WITHIN_S)
        assert (await other.ask(), other.a.skip_s) == ("Well.", 0.0)
    messages = [record.message for record in caplog.records if "router" in record.message]
    assert [" ".join(each.split()[:4]) for each in messages] == ["Worker a fails at", "Worker a is no"]


async def test_an_only_worker_is_called_although_another_router_opened_its_circuit(address: Address):
    alone = {key: value for key, value in WELL.items() if key != "fallbacks"}
    async with replicas(address, DOWN, alone) as (one, other):
        await one.ask(3)
        await one.circuits.poll()
        await other.circuits.poll()
        assert other.a.circuit == "open"
        assert await other.ask() == "Well."
        assert other.a.circuit == "closed", "its own answer counts for more"


async def test_then_each_router_sends_one_probe(address: Address):
    async with replicas(address, DOWN, WELL | {"delay_s": 0.05}, DOWN) as (one, well, down):
        await one.ask(3)
        await one.circuits.poll()
        await one.execute("UPDATE circuit SET until_us = since_us")
        for each in (well, down):
            await each.circuits.poll()
            assert each.a.circuit == "half_open"
        answers = await asyncio.gather(*(well.ask() for _ in range(20)))
        assert sorted(answers) == ["Instead."] * 19 + ["Well."]
        assert well.a.circuit == "closed", "though the other's is not"
        assert await down.ask(20) == "Instead."
        assert (down.calls, down.a.circuit) == (1, "open")
        await down.circuits.poll()
        assert [row.owner for row in await one.rows()] == [one.store.owner], (
            "one failure is no opening of its own"
        )


@pytest.mark.usefixtures("slowly")
async def test_a_router_with_successful_calls_ignores_anothers_open_circuit(address: Address):
    async with replicas(address, DOWN, WELL | {"replies": ["Well.", "Well.", UNAVAILABLE]}) as (one, other):
        assert await other.ask() == "Well."
        await one.ask(3)
        await one.circuits.poll()
        await other.circuits.poll()
        assert other.a.circuit == "closed", "it was answered just before"
        assert await other.ask() == "Well."
        await other.ask()
        assert (other.a.failures_in_a_row, other.a.circuit) == (1, "closed"), "it was answered since"
        one.a.skip_until_s = 0.0
        await one.ask()  # its probe fails, which extends the same opening
        await one.circuits.poll()
        await other.circuits.poll()
        assert other.a.circuit == "closed"


@pytest.mark.usefixtures("slowly")
async def test_an_earlier_success_counts_until_a_call_fails_or_time_passes(address: Address):
    async with replicas(address, DOWN, WELL | {"replies": ["Well.", UNAVAILABLE]}, WELL) as (
        one,
        fails,
        rests,
    ):
        for each in (fails, rests):
            await each.ask()
        await one.ask(3)
        await one.circuits.poll()
        for each in (fails, rests):
            await each.circuits.poll()
            assert each.a.circuit == "closed"
        await fails.ask()
        assert fails.a.circuit == "open", "one failed call is enough where another router says so too"
        rests.a.succeeded_at_s -= RECENT_S
        assert rests.a.circuit == "open"


async def test_a_shared_row_has_only_the_worker_and_is_removed_with_its_router(address: Address):
    async with replicas(address, DOWN, WELL) as (one, other):
        await one.ask(3)
        await one.circuits.poll()
        (row,) = await other.rows()
        assert set(row._mapping) == {"identity", "owner", "worker", "since_us", "until_us"}
        assert (row.worker, row.owner) == ("a", one.store.owner)
        await one.circuits.aclose()
        assert await other.rows() == []


async def test_another_model_with_the_same_name_is_another_worker(address: Address):
    moved = {"name": "a", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    async with replicas(address, DOWN, moved, WELL) as (one, other, same):
        await one.ask(3)
        await one.circuits.poll()
        for each in (other, same):
            await each.circuits.poll()
        assert (other.a.circuit, same.a.circuit) == ("closed", "open")
        await other.pool.aclose()


async def test_each_deployment_is_shared_separately(address: Address):
    places = [{"name": name, "base_url": f"http://127.0.0.1:1/{name}"} for name in ("east", "west")]
    api = {"name": "a", "kind": "openai", "model": "m", "deployments": places}
    async with replicas(address, api, api) as (one, other):
        health = {worker.name: own for worker, own in one.health.workers().items()}
        for _ in range(3):
            health["a@east"].fail()
        await one.circuits.poll()
        await other.circuits.poll()
        states = {worker.name: own.circuit for worker, own in other.health.workers().items()}
        assert states == {"a": "closed", "a@east": "open", "a@west": "closed", "b": "closed"}
        for each in (one, other):
            await each.pool.aclose()


@pytest.mark.parametrize(
    ("since_s", "until_s"),
    [(-600, -120), (-1, 86_400), (60, 90), (-1, 9e12), (-9e12, -9e12)],
    ids=["stale", "too long", "not begun", "endless", "ancient"],
)
async def test_a_stale_or_invalid_row_is_ignored_and_replaced(
    address: Address, since_s: float, until_s: float
):
    async with replicas(address, DOWN, WELL) as (one, other):
        await one.ask(3)
        await one.circuits.poll()
        now = "(extract(epoch from clock_timestamp()) * 1000000)::bigint"
        await one.execute(
            f"UPDATE circuit SET since_us = {now} + cast(:since as bigint), until_us = {now} + cast(:until as bigint)",
            since=int(since_s * 1e6),
            until=int(until_s * 1e6),
        )
        await other.circuits.poll()
        assert other.a.circuit == "closed"
        await other.ask()
        for _ in range(3):
            other.a.fail()
        await other.circuits.poll()
        assert [row.owner for row in await other.rows()] == [other.store.owner]


async def test_a_row_with_impossible_numbers_is_ignored(address: Address):
    async with replicas(address, DOWN, WELL) as (one, other):
        await one.ask(3)
        await one.circuits.poll()
        await one.execute("UPDATE circuit SET since_us = -9223372036854775808")
        await other.circuits.poll()
        assert other.a.circuit == "closed"


async def test_a_store_that_does_not_respond_counts_as_unavailable(address: Address):
    async with replicas(address, DOWN, WELL, patience_s=2.0) as (one, other):
        await one.ask(3)
        for each in (one, other):
            await each.circuits.poll()
        assert other.a.circuit == "open"
        async with (await one.store.database()).writing() as connection:
            await connection.execute(text("LOCK TABLE circuit IN ACCESS EXCLUSIVE MODE"))
            looking = asyncio.create_task(other.circuits.poll())
            other.a.elsewhere = ()
            assert await other.ask() == "Well."
            with pytest.raises(TimeoutError):
                await looking
        await other.circuits.poll()
        assert other.a.elsewhere


async def test_without_the_store_circuits_are_local_and_no_call_fails(
    address: Address, caplog: pytest.LogCaptureFixture
):
    async with replicas(address, DOWN, WELL) as (one, other):
        await one.ask(3)
        await one.circuits.poll()
        other.circuits.start()
        await until(lambda: other.a.circuit == "open")
        await one.execute("DROP TABLE circuit")
        await until(lambda: other.a.circuit == "closed")
        assert (await other.ask(), other.calls) == ("Well.", 1)
        assert one.a.circuit == "open", "its own"
    messages = [record.message for record in caplog.records if "not shared" in record.message]
    assert len(messages) == 1


async def test_a_store_that_was_never_available_changes_nothing(caplog: pytest.LogCaptureFixture):
    nowhere = parse_address("postgresql://podium:secret@127.0.0.1:1/podium")
    async with replicas(nowhere, DOWN) as (one,):
        one.circuits.start()
        await until(lambda: "not shared" in caplog.text)
        assert await one.ask(5) == "Instead."
        assert (one.calls, one.a.circuit) == (3, "open")
    assert "secret" not in caplog.text


async def test_the_list_of_workers_shows_circuits_opened_elsewhere():
    async with served(team()) as it:
        now_s = time.monotonic()
        it.service.pool.health["a"].elsewhere = (Opening(now_s, now_s + 60),)
        for _ in range(3):
            it.service.pool.health["b"].fail()
        workers = {each["id"]: each for each in (await it.http.get("/v1/workers")).json()["data"]}
        assert [(workers[id]["circuit"], workers[id]["opened_elsewhere"]) for id in "abc"] == [
            ("open", True),
            ("open", False),
            ("closed", False),
        ]
        assert workers["a"]["failed"] == 0
        models = {each["id"]: each for each in (await it.http.get("/v1/models")).json()["data"]}
        assert models["a"]["podium"]["circuit"] == "open"


async def test_a_local_database_file_is_not_used_for_sharing(tmp_path: Path):
    async with replicas(sqlite_address(tmp_path / "podium.db"), DOWN) as (one,):
        one.circuits.start()
        await one.ask(3)
        await asyncio.sleep(0)
        assert not (tmp_path / "podium.db").exists()
