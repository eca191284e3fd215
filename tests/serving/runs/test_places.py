"""How many runs a router takes: each has one place, until it is written. And no client is told of one whose beginning is late."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from sqlalchemy import text

from conductor.errors import Overloaded, StoreUnavailable
from conductor.model.messages import Message
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from serving.api.app import build_api
from serving.database.address import Address
from serving.runs import journal as journal_module
from serving.runs.admission import check_room
from serving.runs.journal import LATE_FOR_S, LATE_S, WRITTEN_WITHIN_S, RunJournal
from tests.serving.api.served import ASK, Json, listening, scripted, team
from tests.serving.runs.stores import Replica, replicas
from tests.serving.runs.test_once import ask
from tests.states import until

WORDS = " ".join(f"word{n}" for n in range(40))


@pytest.mark.parametrize("tier", ["default", "flex"])
async def test_a_run_that_outlives_its_client_takes_one_place(store_address: Address, tier: str):
    settings = team(workers=[scripted("a", "Yes.")], workflows={}, limits={"max_running": 2})
    async with replicas(store_address, settings, n=1) as (one,):
        assert (await ask(one.api, model="a", service_tier=tier)).status_code == 200


async def test_as_many_runs_that_outlive_their_clients_begin_at_once_as_there_are_places(
    store_address: Address,
):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=40)], workflows={}, limits={"max_running": 10})
    async with replicas(store_address, settings, n=1) as (one,):
        told = await asyncio.gather(*(ask(one.api, f"name {n}", model="a") for n in range(10)))
        assert [each.status_code for each in told] == [200] * 10


async def test_who_asks_again_for_a_run_that_is_under_way_needs_no_place(store_address: Address):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=20)], workflows={}, limits={"max_running": 1})
    async with replicas(store_address, settings, n=1) as (one,):
        first = asyncio.create_task(ask(one.api, model="a"))
        await until(lambda: one.api.service.running == 1)
        assert (await one.api.post({"model": "a"})).status_code == 429, "it is full"
        assert (await ask(one.api, model="a")).json() == (await first).json()


def test_what_has_ended_and_is_not_written_is_nobodys_share():
    limits: Any = SimpleNamespace(max_running=100)
    pool: Any = SimpleNamespace(settings=SimpleNamespace(limits=limits))
    check_room([Account("modest")], 95, pool, Account("modest"), "interactive")
    flood = [Account("flood")] * 94
    with pytest.raises(Overloaded):
        check_room([Account("modest"), *flood], 95, pool, Account("flood"), "interactive")
    check_room([Account("modest"), *flood], 95, pool, Account("modest"), "interactive")


class AwayStore:
    """A database that answers with an error, and the second time not at all."""

    def __init__(self) -> None:
        self.asked = 0

    async def ledger(self) -> Any:
        return SimpleNamespace(writer=self)

    async def do(self, *_: object) -> None:
        self.asked += 1
        if self.asked > 1:
            await asyncio.Event().wait()
        raise StoreUnavailable("It is away.")


async def test_runs_that_wait_for_a_store_that_is_away_take_no_places_also_while_it_is_tried():
    store: Any = AwayStore()
    journal = RunJournal(store, lambda: 1000, lambda *_: None)
    ended = Record("wf_1", Task((Message.of("user", "Why?"),)), 0.0, status="finished", answer="So.")
    journal.put(RunRecords(ended))
    assert journal.n_unwritten == 1
    await until(lambda: store.asked == 2, "it is tried again")
    assert journal.n_unwritten == 0
    assert journal.find("wf_1")
    assert journal._task  # pyright: ignore[reportPrivateUsage]
    journal._task.cancel()  # pyright: ignore[reportPrivateUsage]


async def whole_stream(url: str, body: Json) -> None:
    """Until its end."""
    async with httpx2.AsyncClient(base_url=url, timeout=30) as http:
        assert (await http.post("/v1/chat/completions", json=body)).content.endswith(b"[DONE]\n\n")


async def one_byte(url: str, body: Json) -> None:
    """Until the client of a stream is told anything."""
    async with (
        httpx2.AsyncClient(base_url=url, timeout=30) as http,
        http.stream("POST", "/v1/chat/completions", json=body),
    ):
        pass


@asynccontextmanager
async def hanging(address: Address, replica: Replica) -> AsyncGenerator[None]:
    """A store of which no run can be written until the end of the block."""
    async with (await replica.store.database()).writing() as connection:
        if address.kind == "postgresql":
            await connection.execute(text("LOCK TABLE run IN EXCLUSIVE MODE"))
        else:
            await connection.execute(text("DELETE FROM run WHERE id = 'none'"))
        yield


async def test_no_client_is_told_of_a_run_of_which_nothing_is_written_a_while_after_it_began(
    store_address: Address,
):
    settings = team(workers=[scripted("a", WORDS, delay_s=0.3, tokens_per_s=20)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        await one.api.post({"model": "a"})  # the store is open
        async with hanging(store_address, one):
            asked = asyncio.create_task(one_byte(url, ASK | {"model": "a", "stream": True}))
            assert not (await asyncio.wait([asked], timeout=1))[0]  # its first byte is due after 0.1 s
        await asked


async def test_a_store_that_hangs_holds_a_stream_up_once_and_the_next_one_not_at_all(store_address: Address):
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=10)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        await one.api.post({"model": "a"})  # the store is open
        async with hanging(store_address, one):
            async with asyncio.timeout(4 + 2 * LATE_FOR_S):
                await whole_stream(url, ASK | {"model": "a", "stream": True})
            async with asyncio.timeout(LATE_FOR_S):
                await one_byte(url, ASK | {"model": "a", "stream": True})


async def test_the_client_of_a_run_that_ended_before_anything_was_written_of_it_is_told_at_once(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal_module, "BATCH_S", 0.5)  # as on a loop that has much to do
    settings = team(workers=[scripted("a", "Yes.", delay_s=2 * LATE_S)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), listening(build_api(one.api.service)) as url:
        async with asyncio.timeout(WRITTEN_WITHIN_S / 2):
            await one_byte(url, ASK | {"model": "a", "stream": True})
