"""Runs that wait for tool results in a store that routers share."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from conductor.model.call import Call
from conductor.model.reply import Delta
from serving.database.address import Address
from tests.serving.api.calling_team import ToolCaller, calling_team
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Json, Served, scripted, served, team
from tests.serving.api.test_policies import limit
from tests.serving.api.tool_caller import tool_caller
from tests.serving.store.stores import Replica, replicas
from tests.states import until

pytestmark = pytest.mark.postgresql

PATH = "/v1/chat/completions"
TOOLS: Json = {"tools": [{"type": "function", "function": {"name": "clock"}}]}
SECRET = "sk-proj-" + "a1B2c3D4" * 5


async def suspend(api: Served, text: str = "Hello", model: str = "mini") -> Json:
    """Start a run that waits for a tool, and return the request with its result."""
    body: Json = ASK | TOOLS | {"messages": [{"role": "user", "content": text}], "model": model}
    return with_results(body, await api.ok(body))


def with_results(request: Json, answer: Json) -> Json:
    """Return the request with results for the calls of `answer`."""
    message = answer["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "noon"} for call in message["tool_calls"]
    ]
    return request | {"messages": [*request["messages"], message, *results]}


def text_of(answer: httpx2.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


async def suspended_rows(router: Replica) -> list[Any]:
    return [tuple(row) for row in await router.rows("SELECT run_id, drop_us, body FROM suspended_run")]


async def test_a_sweep_does_not_change_a_waiting_run(store_address: Address) -> None:
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


async def test_every_router_lists_a_waiting_runs_question_without_secrets(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team()) as (one, other):
        answer = await suspend(one.api, f"My key is {SECRET}.")

        async def listed() -> list[tuple[str, str]]:
            runs = (await other.api.http.get("/v1/workflows")).json()["data"]
            return [(run["status"], message["content"]) for run in runs for message in run["messages"]]

        assert await listed() == [("waiting", "My key is [secret removed].")]
        assert text_of(await one.api.http.post(PATH, json=answer)) == "They gave: noon."
        await one.records.aclose()
        assert await listed() == [("finished", "My key is [secret removed].")]


async def test_a_run_keeps_waiting_if_a_router_cannot_continue_it(store_address: Address) -> None:
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


async def test_repeated_results_next_to_a_secret_get_the_same_answer(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        answer = await suspend(one.api)
        answer["messages"].append({"role": "user", "content": f"Use {SECRET} now."})
        first, again = [(await one.api.http.post(PATH, json=answer)) for _ in range(2)]
        assert text_of(first) == text_of(again) == "They gave: noon."
        assert first.json()["id"] == again.json()["id"]


async def test_partial_results_cost_nothing_and_a_repeated_turn_reports_its_own_tokens(
    store_address: Address,
) -> None:
    settings: Json = team(workers=[tool_caller("a", [["clock", "clock"], ["clock"]])], workflows={})
    async with replicas(store_address, settings, n=1) as (one,):
        both = await suspend(one.api, model="a")
        some = both | {"messages": both["messages"][:-1]}
        tokens: list[tuple[int, int]] = []

        async def tell(request: Json) -> Json:
            answer = await one.api.ok(request)
            tokens.append((answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]))
            return answer

        await tell(some)
        then = with_results(both, await tell(both))
        await tell(then)
        await tell(both)
        assert tokens == [(0, 0), (10, 2), (10, 3), (10, 2)]


class SlowCaller(ToolCaller):
    """Tool caller that pauses before its answer."""

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        async for delta in super()._deltas(call):
            if delta.text.startswith("They"):
                await asyncio.sleep(0.5)
            yield delta


def slow_team() -> Json:
    factory = "tests.serving.store.test_suspended_runs:SlowCaller"
    return team(workers=[{"name": "a", "kind": "python", "factory": factory}], workflows={})


async def check_that_both_get_the_answer(api: Served) -> None:
    answer = await suspend(api, model="a")
    with pytest.raises(httpx2.ReadTimeout):
        await api.http.post(PATH, json=answer, timeout=0.15)
    again = await asyncio.gather(*(api.http.post(PATH, json=answer) for _ in range(2)))
    assert [text_of(each) for each in again] == ["They gave: noon."] * 2
    assert (await api.ok(answer))["choices"][0]["message"]["content"] == "They gave: noon."


async def test_results_repeated_while_the_run_continues_get_its_answer(
    store_address: Address,
) -> None:
    async with replicas(store_address, slow_team(), n=1) as (one,):
        await check_that_both_get_the_answer(one.api)


async def test_results_that_reach_two_routers_at_once_continue_one_run_and_leave_no_slot_taken(
    store_address: Address,
) -> None:
    async with replicas(store_address, team(workers=[tool_caller("a")], workflows={}), n=2) as routers:
        body = await suspend(routers[0].api, model="a")
        answers = await asyncio.gather(*(router.api.ok(body) for router in routers))
        assert answers[0]["podium"]["workflow_id"] == answers[1]["podium"]["workflow_id"]
        for router in routers:
            slots = router.api.service.sessions.admission.slots
            await until(lambda slots=slots: slots.n_taken == 0, "the run has ended")


async def test_results_repeated_while_a_run_in_memory_continues_get_its_answer() -> None:
    async with served(slow_team()) as api:
        await check_that_both_get_the_answer(api)


async def test_a_repeated_idempotent_request_gets_its_own_answer(
    store_address: Address,
) -> None:
    async with replicas(store_address, calling_team(), n=1) as (one,):
        named = {"idempotency-key": "mine-1"}
        first = await one.api.http.post(PATH, json=ASK | TOOLS, headers=named)
        answer = with_results(ASK | TOOLS, first.json())
        assert text_of(await one.api.http.post(PATH, json=answer)) == "They gave: noon."
        again = await one.api.http.post(PATH, json=ASK | TOOLS, headers=named)
        assert again.json()["choices"] == first.json()["choices"]


async def test_an_expired_run_in_memory_is_reported_immediately() -> None:
    async with served(calling_team() | {"store": {"tools_wait_s": 0.1}}) as api:
        answer = await suspend(api)
        await asyncio.sleep(0.2)
        late = await api.http.post(PATH, json=answer, timeout=2)
        assert late.status_code == 400
        assert "no longer waiting" in late.json()["error"]["message"]


async def test_partial_results_without_tools_return_the_remaining_calls() -> None:
    settings: Json = team(workers=[tool_caller("a", [["clock", "clock"]])], workflows={})
    async with served(settings) as api:
        whole = await suspend(api, model="a")
        some = {"model": "a", "messages": whole["messages"][:-1]}
        (last_call,) = (await api.ok(some))["choices"][0]["message"]["tool_calls"]
        assert last_call["id"] == whole["messages"][-1]["tool_call_id"]


async def test_a_run_does_not_continue_if_its_policy_now_forbids_storing_or_tools(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path, calling_team()) as it:
        body: Json = ASK | TOOLS
        answer = with_results(body, (await it.ask("mine", "POST", PATH, body)).json())
        await limit(it, "keys", "mine", store_content=False)
        refused = await it.ask("mine", "POST", PATH, answer)
        assert refused.status_code == 403, refused.text
        await limit(it, "keys", "mine", store_content=True, tools=["calendar"])
        refused = await it.ask("mine", "POST", PATH, answer)
        assert (refused.status_code, refused.json()["error"]["param"]) == (403, "tools"), refused.text
        await limit(it, "keys", "mine", tools=["clock"])
        more = answer | {"tools": [*TOOLS["tools"], {"type": "function", "function": {"name": "shell"}}]}
        assert (await it.ask("mine", "POST", PATH, more)).status_code == 403, "results bring no other tools"
        assert text_of(await it.ask("mine", "POST", PATH, answer)) == "They gave: noon."
