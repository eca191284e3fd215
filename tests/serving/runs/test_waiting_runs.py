"""Runs that wait for results of tools, in a store that routers share: exact, once, and for no longer than they may."""

from typing import Any

import httpx2

from serving.database.address import Address
from tests.serving.api.calling_team import calling_team
from tests.serving.api.served import ASK, Json, Served, scripted, team
from tests.serving.api.tool_caller import tool_caller
from tests.serving.runs.stores import Replica, replicas

PATH = "/v1/chat/completions"
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "clock"}}]}
SECRET = "sk-proj-" + "a1B2c3D4" * 5


async def suspend(api: Served, text: str = "Hello", model: str = "mini") -> Json:
    """A run that waits: the request that brings its result."""
    asked: Json = ASK | TOOLS | {"messages": [{"role": "user", "content": text}], "model": model}
    return with_results(asked, await api.ok(asked))


def with_results(asked: Json, answer: Json) -> Json:
    """The request that brings the results of what `answer` calls."""
    said = answer["choices"][0]["message"]
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "noon"} for call in said["tool_calls"]]
    return asked | {"messages": [*asked["messages"], said, *results]}


def text_of(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def suspended_rows(router: Replica) -> list[Any]:
    return [tuple(row) for row in await router.rows("SELECT run_id, drop_us, body FROM suspended_run")]


async def test_a_sweep_leaves_a_run_that_waits_as_it_is(store_address: Address) -> None:
    twice: Json = team(workers=[tool_caller("a", [["clock"], ["clock"]])], workflows={})
    async with replicas(store_address, twice) as (one, other):
        answer = await suspend(one.api, f"My key is {SECRET}.", model="a")
        assert (await one.api.ok(answer))["choices"][0]["finish_reason"] == "tool_calls"
        before = await suspended_rows(one)
        assert len(before) == 1
        assert await one.rows("SELECT kept FROM run") == [(1,)]
        for router in (one, other):
            await router.records.sweep()
            assert await router.records.take_over() == 0
        assert await suspended_rows(one) == before


async def test_a_run_waits_on_where_a_router_cannot_go_on_with_it(store_address: Address) -> None:
    without = team(workers=[scripted("b")], workflows={})
    async with (
        replicas(store_address, calling_team(), n=1) as (one,),
        replicas(store_address, without, n=1) as (other,),
    ):
        answer = await suspend(one.api)
        before = await suspended_rows(one)
        for _ in range(2):
            refused = await other.api.http.post(PATH, json=answer)
            assert refused.status_code == 400, refused.text
            assert "'a'" in refused.json()["error"]["message"]
        assert [row[0] for row in await suspended_rows(one)] == [row[0] for row in before]
        assert text_of(await one.api.http.post(PATH, json=answer)) == "They gave: noon."


async def test_results_that_are_sent_again_beside_words_with_a_secret_get_the_same_answer(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        answer = await suspend(one.api)
        answer["messages"].append({"role": "user", "content": f"Use {SECRET} now."})
        first, again = [(await one.api.http.post(PATH, json=answer)) for _ in range(2)]
        assert text_of(first) == text_of(again) == "They gave: noon."
        assert first.json()["id"] == again.json()["id"]


async def test_results_of_some_calls_cost_nothing_and_a_turn_that_is_asked_again_tells_its_own_tokens(
    store_address: Address,
) -> None:
    settings: Json = team(workers=[tool_caller("a", [["clock", "clock"], ["clock"]])], workflows={})
    async with replicas(store_address, settings, n=1) as (one,):
        both = await suspend(one.api, model="a")
        some = both | {"messages": both["messages"][:-1]}
        told: list[tuple[int, int]] = []

        async def tell(request: Json) -> Json:
            answer = await one.api.ok(request)
            told.append((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))
            return answer

        await tell(some)
        then = with_results(both, await tell(both))
        await tell(then)
        await tell(both)
        assert told == [(0, 0), (10, 2), (10, 3), (10, 2)]
