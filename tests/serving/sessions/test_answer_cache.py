"""Answer cache: equal requests of a team are answered and paid once. Other teams never get the answer."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from serving.accounts.account_policy import AccountPolicy
from serving.accounts.caller import ANONYMOUS
from serving.accounts.hold import team_subject
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.resolve import resolve
from serving.database.address import Address
from serving.pool import build_pool
from serving.sessions.session import RunSpec
from serving.settings.settings import parse
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, Json, answer_text, parsed, scripted, served, team
from tests.serving.store.stores import replicas
from tests.states import until

CHAT = "/v1/chat/completions"
CACHED = {"cache": {"keep_s": 60}}


def calls(it: Any) -> int:
    return sum(len(it.worker(name).calls) for name in ("conductor", "a", "b"))


async def ask(it: Keyed, who: str, **body: Any) -> Any:
    answer = await it.ask(who, "POST", CHAT, ASK | body)
    assert answer.status_code == 200, answer.text
    return answer


async def wait_until_stored(it: Keyed) -> None:
    """Wait until every answer is cached, which happens in the background."""
    await until(lambda: it.api.service.sessions.is_idle, "every answer is kept")


@pytest.mark.parametrize("stream", [False, True])
async def test_an_equal_request_gets_the_cached_answer_free_of_charge(
    stream: bool, store_address: Address
) -> None:
    async with replicas(store_address, team(**CACHED)) as (one, other):
        first = await one.api.post()
        assert "x-podium-cache" not in first.headers
        id = first.headers["x-podium-workflow-id"]
        assert calls(one.api) == 3
        while not (
            await other.rows("SELECT 1 FROM cached_answer JOIN run ON run.id = run_id WHERE body IS NOT NULL")
        ):
            await asyncio.sleep(0.02)
        for router in (one, other):
            again = await router.api.post({"stream": stream})
            assert again.headers["x-podium-cache"] == "hit"
            if stream:
                events = parsed(again.text)
                summary = events[-2]["podium"]
                assert answer_text(events) == first.json()["choices"][0]["message"]["content"]
            else:
                summary = again.json()["podium"]
                assert again.json()["choices"] == first.json()["choices"]
                assert again.json()["usage"]["total_tokens"] == 0
            assert (summary["cached_from"], summary["cost_usd"], summary["steps"]) == (id, 0, [])
            record = await router.api.record(again.headers["x-podium-workflow-id"])
            assert (record["cached_from"], record["status"], record["cost_usd"]) == (id, "finished", 0)
            assert record["id"] != id
        assert calls(one.api) + calls(other.api) == 3


async def test_only_an_equal_request_that_permits_caching_gets_a_cached_answer() -> None:
    others: list[Json] = [
        {"temperature": 0.5},
        {"messages": [{"role": "user", "content": "why is the sky blue?"}]},
        {"max_tokens": 50},
        {"model": "ultra"},
    ]
    async with served(
        team(workers=[scripted("a"), scripted("b", "B says so."), scripted("c")], **CACHED)
    ) as api:
        for body in ({}, *others):
            assert "cached_from" not in (await api.ok(body))["podium"], body
        for body in ({}, *others, {"user": "somebody"}):
            assert "cached_from" in (await api.ok(body))["podium"], body
        assert "cached_from" not in (await api.ok(cache=False))["podium"]
        for _ in range(2):  # the cached answer has no log probabilities
            assert "cached_from" not in (await api.ok({"logprobs": True}))["podium"]
        assert "cached_from" not in (await api.post({}, "/v1/plans")).json()["podium"]


async def test_a_cached_answer_waits_in_no_queue() -> None:
    async with served(team(**CACHED)) as api:
        await api.ok()
        one = resolve(ChatDialect().parse(json.dumps(ASK).encode()), api.service.pool)
        sessions = api.service.sessions
        match = await sessions.requests.find(one.task, ANONYMOUS.account, may_be_cached=True)
        spec = RunSpec("wf_again", one.task, one.team, one.pool, cached=match.record)
        async with sessions.start(spec, ANONYMOUS) as session:
            assert session.run.record.cached_from
            assert api.service.pool.limiters["conductor"]._coming == {}


async def test_a_cached_answer_has_the_new_requests_metadata_and_conversation() -> None:
    async with served(team() | CACHED) as api:
        for name in ("ann", "bob"):
            conversation = (await api.http.post("/v1/conversations", json={})).json()["id"]
            body = {
                "model": "mini",
                "input": "Why?",
                "metadata": {"user": name},
                "conversation": conversation,
            }
            response = (await api.http.post("/v1/responses", json=body)).json()
            assert ("cached_from" in response["podium"]) == (name == "bob")
            assert (response["metadata"], response["conversation"]) == ({"user": name}, {"id": conversation})


async def test_an_answer_of_earlier_settings_is_not_returned_under_new_ones() -> None:
    old, new = (team(workers=[scripted("a", text, delay_s=0.2)], workflows={}, **CACHED) for text in "xy")
    async with served(old) as api:
        asking = asyncio.create_task(api.ok({"model": "a"}))
        await until(lambda: api.worker("a").open_calls == 1)
        await api.service.swap(build_pool(parse(new), {}, {}))
        assert (await asking)["choices"][0]["message"]["content"] == "x"
        await until(lambda: api.service.sessions.is_idle, "the answer is kept")
        assert (await api.ok({"model": "a"}))["choices"][0]["message"]["content"] == "y"


async def test_nothing_is_cached_by_default() -> None:
    async with served(team()) as api:
        assert ["cached_from" in (await api.ok())["podium"] for _ in range(2)] == [False, False]


async def test_a_cached_answer_expires() -> None:
    async with served(team(cache={"keep_s": 0.3})) as api:
        assert ["cached_from" in (await api.ok())["podium"] for _ in range(2)] == [False, True]
        await asyncio.sleep(0.31)
        assert ["cached_from" in (await api.ok())["podium"] for _ in range(2)] == [False, True]


async def test_a_truncated_or_failed_answer_is_not_cached() -> None:
    cut, failed = {"text": "Half of", "finish": "length"}, {"error": "refused"}
    async with served({"workers": [scripted("w", cut, failed, "Whole.")]} | CACHED) as api:
        body = {"model": "w"}
        assert (await api.ok(body))["choices"][0]["finish_reason"] == "length"
        assert (await api.post(body)).status_code != 200
        assert "cached_from" not in (await api.ok(body))["podium"]
        assert "cached_from" in (await api.ok(body))["podium"]


async def test_cached_answers_are_per_team_and_hits_are_free(
    store_address: Address,
) -> None:
    async with keyed(store_address, team(**CACHED)) as it:
        await it.directory.set_budget(team_subject(it.ids["search"]), {"day": Decimal(1)})
        first = (await ask(it, "mine")).json()["podium"]
        await wait_until_stored(it)
        for who, is_hit in [
            ("mine", True),
            ("only run", True),
            ("other team", False),
            ("alone", False),
            ("admin", False),
            ("other team", True),
            ("alone", True),
        ]:
            podium = (await ask(it, who)).json()["podium"]
            assert ("cached_from" in podium) is is_hit, who
            assert (podium["cost_usd"] == 0) is is_hit, who
            await wait_until_stored(it)
        while True:
            day = (await it.ask("admin", "GET", f"/v1/admin/teams/{it.ids['search']}/budget")).json()["day"]
            if Decimal(day["held_usd"]) == 0 and Decimal(day["spent_usd"]) > 0:
                break
            await asyncio.sleep(0.02)
        assert Decimal(day["spent_usd"]) == Decimal(str(first["cost_usd"])), "once for three requests"


async def test_a_cached_answer_requires_access_to_the_same_workers(
    store_address: Address,
) -> None:
    async with keyed(store_address, team(**CACHED)) as it:

        async def is_hit(who: str) -> bool:
            podium = (await ask(it, who)).json()["podium"]
            await wait_until_stored(it)
            return "cached_from" in podium

        assert [await is_hit("mine") for _ in range(2)] == [False, True]
        await it.directory.change_key_policy(it.ids["only run"], AccountPolicy(max_effort="low"))
        assert [await is_hit("only run") for _ in range(2)] == [False, True]
        await it.directory.change_key_policy(it.ids["alone"], AccountPolicy(store_content=False))
        assert [await is_hit("alone") for _ in range(2)] == [False, False]


async def test_a_redacted_answer_is_not_cached() -> None:
    secret = "Use sk-proj-" + "a1B2" * 12 + " for it."
    async with served({"workers": [scripted("w", secret)]} | CACHED) as api:
        for _ in range(2):
            answer = await api.ok({"model": "w"})
            assert answer["choices"][0]["message"]["content"] == secret
            assert "cached_from" not in answer["podium"]


async def test_the_cache_can_be_limited_to_teams(store_address: Address) -> None:
    async with keyed(store_address, team(cache={"keep_s": 60, "teams": ["nobody's"]})) as it:
        assert ["cached_from" in (await ask(it, "mine")).json()["podium"] for _ in range(2)] == [False, False]


async def test_a_cached_answer_is_removed_with_the_content_of_its_run(store_address: Address) -> None:
    async with replicas(store_address, team(**CACHED), n=1) as (one,):
        await one.api.ok()
        while not (await one.rows("SELECT 1 FROM cached_answer")):
            await asyncio.sleep(0.02)
        assert "cached_from" in (await one.api.ok())["podium"]
        while not (await one.rows("SELECT 1 FROM run WHERE body IS NOT NULL")):
            await asyncio.sleep(0.02)
        await one.records._idle.wait()
        await one.change("UPDATE run SET body = NULL, body_bytes = 0")
        await one.change("DELETE FROM run_event")
        assert "cached_from" not in (await one.api.ok())["podium"]
