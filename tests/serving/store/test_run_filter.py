"""Filtering runs by worker, cost and words, with and without a store, and after texts expire."""

from contextlib import AsyncExitStack
from typing import Any

import pytest
from sqlalchemy import Row

from loadtest.prove.run_lists import fill
from serving.accounts.caller import ANONYMOUS
from serving.accounts.replica_store import ReplicaStore
from serving.database.address import Address
from serving.database.clock import now_us
from serving.store.listing import FIRST_RUNS, list_rows
from serving.store.retention import DAY_US
from serving.store.run_filter import RunFilter
from serving.store.store import Place
from tests.serving.api.served import ASK, PRICE, Json, Served, scripted, served, step, team
from tests.serving.store.stores import Replica, replicas

pytestmark = pytest.mark.postgresql

POOL = team(
    workers=[
        scripted("a", "Scattering, 100% of it_all.", price=PRICE),
        scripted("b", "Ärger \u0000 mit dem Himmel.", price=PRICE),
        scripted("c", "Nothing."),
    ],
    workflows={"duo": [step("a", "Draft."), step("b", "Polish.", [0])]},
)


async def find_runs(api: Served, **filters: str | int | float) -> list[str]:
    """Return the models of the listed runs, newest first."""
    answer = await api.http.get("/v1/workflows", params=filters)
    assert answer.status_code == 200, answer.text
    assert "Scattering" not in answer.text
    return [run["model"] for run in answer.json()["data"]]


async def questions(api: Served) -> list[Json]:
    listed = (await api.http.get("/v1/workflows")).json()["data"]
    return [message for run in listed for message in run["messages"]]


async def ask_all_workers(api: Served) -> Json:
    """Run `c`, `duo` and `a`, and return their costs. `c` is free."""
    costs: Json = {}
    for model in ("c", "duo", "a"):
        costs[model] = (await api.ok({"model": model}))["podium"]["cost_usd"]
    return costs


@pytest.mark.parametrize("with_store", [True, False])
async def test_runs_are_filtered_by_worker_cost_and_words(store_address: Address, with_store: bool) -> None:
    async with AsyncExitStack() as stack:
        if with_store:
            one, other = await stack.enter_async_context(replicas(store_address, POOL))
            costs = await ask_all_workers(one.api)
            await one.records.aclose()  # flushes them to the store
            api = other.api
        else:
            api = await stack.enter_async_context(served(POOL))
            costs = await ask_all_workers(api)
        assert await questions(api) == [ASK["messages"][-1]] * 3
        assert await find_runs(api, worker="a") == ["a", "duo"]
        assert await find_runs(api, worker="b") == ["duo"]
        assert await find_runs(api, worker="nobody") == []
        assert await find_runs(api, min_cost_usd=costs["duo"]) == ["duo"]
        assert await find_runs(api, model="duo") == ["duo"]
        assert await find_runs(api, model="duo", worker="c") == []
        assert await find_runs(api, status="finished") == ["a", "duo", "c"]
        assert await find_runs(api, status="failed") == []
        assert await find_runs(api, max_cost_usd=0) == ["c"]
        assert await find_runs(api, min_cost_usd=costs["a"], worker="a", words="SCATTERING") == ["a"]
        assert await find_runs(api, words="why is the SKY") == ["a", "duo", "c"]
        assert await find_runs(api, words="ärger") == ["duo"]
        assert await find_runs(api, words="100% of it_all") == ["a"]
        assert await find_runs(api, words="100_ of") == []
        assert await find_runs(api, words="sky", limit=1, worker="a") == ["a"]
        for name, value in (
            ("words", "ab"),
            ("words", "a\0bc"),
            ("worker", "\0"),
            ("status", "odd"),
            ("min_cost_usd", "-1"),
        ):
            refused = await api.http.get("/v1/workflows", params={name: value})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)


async def test_one_old_matching_run_is_found_page_by_page(store_address: Address) -> None:
    store = ReplicaStore(store_address)
    try:
        await store.ledger()
        await fill(store, 2 * FIRST_RUNS + 5)

        async def ask(query: Any) -> list[Row[Any]]:
            async with (await store.database()).reading() as connection:
                return list(await connection.execute(query))

        run_filter, places, ids = (
            RunFilter(words="question number 7 about"),
            list[Place | None]([None]),
            list[str](),
        )
        while not ids:
            rows, end = await list_rows(ask, 5, ANONYMOUS, places[-1], run_filter, enough_s=0)
            ids += [row.id for row in rows]
            places.append(end)
        assert (ids, [place[1] if place else None for place in places]) == (
            ["wf_7"],
            [None, f"wf_{FIRST_RUNS + 6}", "wf_6", None][: len(places)],
        )
    finally:
        await store.aclose()


async def test_the_word_index_is_removed_with_the_texts(store_address: Address) -> None:
    async with replicas(store_address, POOL, n=1) as (one,):
        await ask_all_workers(one.api)
        await one.records.aclose()
        assert await counts(one) == (3, 4, 3)
        await one.records.remove_old(now_us() + 31 * DAY_US)
        assert await counts(one) == (3, 4, 0)
        assert await find_runs(one.api, worker="b") == ["duo"]
        assert await find_runs(one.api, words="sky") == []
        assert await questions(one.api) == []
        await one.records.remove_old(now_us() + 401 * DAY_US)
        assert await counts(one) == (0, 0, 0)


async def counts(one: Replica) -> tuple[int, ...]:
    """Return the number of rows of runs, of their workers and of their texts."""
    tables = ("run", "run_worker", "run_text")
    return tuple([(await one.rows(f"SELECT count(*) FROM {table}"))[0][0] for table in tables])
