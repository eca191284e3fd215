"""Load shedding: an overloaded router rejects requests, but a burst does not count as overload."""

import asyncio
import sqlite3
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import httpx2
import pytest

from conductor.run.run import end_task
from serving.database.address import sqlite_address
from serving.edge import exchange
from serving.edge.exchange import LONG_S
from tests.serving.api.served import Served, scripted, served, team
from tests.serving.store.stores import replicas
from tests.states import until

pytestmark = pytest.mark.real_time

SOON_S, TURN_S = 0.05, 0.075
"""Threshold for a long turn of the loop, and length of each turn here. Real ones would take minutes of a core."""


@pytest.fixture
def soon_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "LONG_S", SOON_S)


def work_for(seconds: float) -> None:
    """Use CPU time of this thread, which takes longer on a busy machine."""
    ends_s = time.thread_time() + seconds
    while time.thread_time() < ends_s:
        pass


@asynccontextmanager
async def too_much_to_do() -> AsyncGenerator[None]:
    """Make every turn of the event loop long, as with thousands of requests."""

    async def work() -> None:
        while True:
            work_for(TURN_S)
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    try:
        yield
    finally:
        await end_task(working)


async def ask(api: Served) -> httpx2.Response:
    return await api.post({"model": "a"})


@pytest.mark.usefixtures("soon_long")
async def test_an_overloaded_router_rejects_requests_with_retry_after():
    async with served(team()) as api:
        async with too_much_to_do():
            refused = await ask(api)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "overloaded")
        assert refused.json()["error"]["param"] in refused.json()["error"]["message"], "it names the setting"
        assert int(refused.headers["retry-after"]) >= 1
        assert len(api.worker("a").calls) == 0
        assert (await ask(api)).status_code == 200


@pytest.mark.usefixtures("soon_long")
async def test_an_overloaded_router_still_answers_cheap_requests():
    async with served(team()) as api, too_much_to_do():
        assert (await api.http.get("/healthz")).status_code == 200
        assert (await api.http.get("/v1/workflows")).status_code == 200
        assert (await api.http.post("/v1/workflows/wf_1/cancel")).status_code == 404


async def test_a_burst_or_one_long_turn_rejects_no_request():
    async with served(team()) as api:
        asking = [asyncio.create_task(ask(api)) for _ in range(100)]
        await until(lambda: api.service.running > 0, "the burst has arrived")
        work_for(4 * LONG_S)
        assert {(await each).status_code for each in asking} == {200}


@pytest.mark.usefixtures("soon_long")
async def test_a_router_on_a_busy_core_rejects_no_request():
    async def wait() -> None:
        while True:
            time.sleep(TURN_S)  # noqa: ASYNC251 (the loop is held up, and does not work)
            await asyncio.sleep(0)

    async with served(team()) as api:
        waiting = asyncio.create_task(wait())
        assert (await ask(api)).status_code == 200
        await end_task(waiting)


async def test_ended_runs_keep_their_slots_until_they_are_written(tmp_path: Path):
    address = sqlite_address(tmp_path / "podium.db")
    settings = team(workers=[scripted("a")], workflows={}, limits={"max_running": 3})
    async with replicas(address, settings, n=1) as (one,):
        assert (await ask(one.api)).status_code == 200, "the database is there"
        await until(lambda: not one.api.service.store.n_unwritten, "it is written")
        with closing(sqlite3.connect(address.path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            statuses = [(await ask(one.api)).status_code for _ in range(4)]
            other.execute("ROLLBACK")
        assert statuses == [200, 200, 200, 429]
        await until(lambda: not one.api.service.store.n_unwritten, "they are written")
        assert (await ask(one.api)).status_code == 200
