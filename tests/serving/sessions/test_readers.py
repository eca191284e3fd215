"""Limits on readers that follow earlier runs: per run, and in total as many as runs."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import httpx2
import pytest

from conductor.errors import Overloaded
from conductor.model.messages import Message
from conductor.run.event_log import EventLog
from conductor.run.record import Account, Record
from conductor.run.run import Run
from conductor.run.task import Task
from serving.database.address import Address
from serving.sessions import run_admission as admission_module
from serving.store.stored_runs import StoredRuns
from tests.serving.api.served import ASK, Json, scripted, team
from tests.serving.store.stores import Replica, open_stores, replicas
from tests.serving.store.test_idempotency import KEY
from tests.states import until

FLOOD, MODEST = Account("flood"), Account("modest")
SLOW = team(workers=[scripted("a", 100 * "word ", tokens_per_s=5)], workflows={}, limits={"max_running": 20})


def follow_chat(one: Replica) -> "asyncio.Task[httpx2.Response]":
    body: Json = ASK | {"model": "a", "stream": True}
    return asyncio.create_task(one.api.http.post("/v1/chat/completions", json=body, headers=KEY))


async def test_the_number_of_readers_per_run_is_limited(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "MOST_READERS", 2)
    async with replicas(store_address, SLOW, n=1) as (one,):
        tasks = [follow_chat(one)]
        await until(lambda: one.api.service.running == 1)
        tasks += [follow_chat(one) for _ in range(3)]
        await until(lambda: any(each.done() for each in tasks))
        refused = next(each.result() for each in tasks if each.done())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert refused.json()["error"]["message"].startswith("2 requests, the maximum,")
        assert int(refused.headers["retry-after"]) >= 1
        for each in tasks:
            each.cancel()
        id = (await one.api.newest())["id"]
        await one.api.http.post(f"/v1/workflows/{id}/cancel")


async def test_the_number_of_streams_of_a_background_response_is_limited(
    store_address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admission_module, "MOST_READERS", 1)
    async with replicas(store_address, SLOW, n=1) as (one,):
        body = {"model": "a", "input": "Go.", "background": True}
        path = f"/v1/responses/{(await one.api.http.post('/v1/responses', json=body)).json()['id']}"
        async with one.api.http.stream("GET", path, params={"stream": True}) as first:
            assert first.status_code == 200
            refused = await one.api.http.get(path, params={"stream": True})
            assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        await one.api.http.post(f"{path}/cancel")


@asynccontextmanager
async def reading(n_bytes: int) -> AsyncGenerator[Run]:
    yield Run(EventLog(Record("wf_1", Task((Message.of("user", n_bytes * "x"),)), 0.0)))


async def test_readers_count_towards_the_memory_and_are_shared_between_keys(store_address: Address) -> None:
    settings = team(limits={"max_running": 10, "max_running_bytes": 150_000})
    async with replicas(store_address, settings, n=1) as (one,):
        sessions = one.api.service.sessions
        async with sessions.follow("wf_1", FLOOD, reading(100_000)):
            with pytest.raises(Overloaded):
                async with sessions.follow("wf_2", MODEST, reading(100_000)):
                    pass
        async with sessions.follow("wf_2", MODEST, reading(100_000)):
            pass
        entered = [sessions.read(f"wf_{n}", FLOOD) for n in range(4)]  # a quarter of 16
        for each in entered:
            each.__enter__()
        with pytest.raises(Overloaded), sessions.read("wf_9", FLOOD):
            pass
        with sessions.read("wf_9", MODEST):
            pass
        for each in entered:
            each.__exit__(None, None, None)


class CountedRuns(StoredRuns):
    n = 0

    async def _look_up(self, id: str, after: int):
        self.n += 1
        return await super()._look_up(id, after)


async def test_concurrent_look_ups_of_the_same_events_share_one_query(store_address: Address) -> None:
    async with open_stores(store_address) as (store, _):
        await store.database()
        runs = CountedRuns(store)
        first = asyncio.create_task(runs.events("wf_1", 0))
        others = [asyncio.create_task(runs.events("wf_1", 0)) for _ in range(5)]
        await asyncio.sleep(0)
        first.cancel()
        assert {id(await each) for each in others} == {id(await others[0])}
        assert runs.n == 1
        await asyncio.gather(runs.events("wf_1", 0), runs.events("wf_1", 7))
        assert runs.n == 3, "readers at other positions need other events"
