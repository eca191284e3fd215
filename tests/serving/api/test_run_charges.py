"""Runs are charged to the calling key and its team, in a real store."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from serving.accounts.hold import key_subject, team_subject
from serving.accounts.ledger_check import find_faults
from serving.database.address import Address
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, scripted, step, team
from tests.serving.workers.test_http import PROVIDERS
from tests.states import until
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

CHAT = "/v1/chat/completions"
DEAR = scripted("dear", "A long answer. " * 40, price={"input_usd_per_mtok": 0, "output_usd_per_mtok": 1000}, max_output_tokens=400)  # fmt: skip


async def spent_usd(it: Keyed, kind: str, id: str) -> Decimal:
    """Return what was spent today, once no hold is left. Bills are written in the background."""
    while True:
        day = (await it.ask("admin", "GET", f"/v1/admin/{kind}/{id}/budget")).json()["day"]
        if Decimal(day["held_usd"]) == 0:
            return Decimal(day["spent_usd"])
        await asyncio.sleep(0.05)


async def ask(it: Keyed, who: str, **body: Any) -> Any:
    return await it.ask(who, "POST", CHAT, ASK | body)


async def test_the_ledger_matches_the_records_per_key_and_team(store_address: Address) -> None:
    async with keyed(store_address) as it:
        costs = dict[str, Decimal]()
        for who in ("mine", "only run", "other team"):
            answer = (await ask(it, who)).json()
            costs[who] = Decimal(str(answer["podium"]["cost_usd"]))
            assert costs[who] > 0
            assert await spent_usd(it, "keys", it.ids[who]) == costs[who]
        assert await spent_usd(it, "teams", it.ids["search"]) == costs["mine"] + costs["only run"]
        assert await spent_usd(it, "teams", it.ids["sales"]) == costs["other team"]
        assert await find_faults(await it.directory.open()) == []


async def test_a_teams_budget_applies_to_all_of_its_keys_only(store_address: Address) -> None:
    async with keyed(store_address, team(workers=[DEAR], workflows={})) as it:
        await it.directory.set_budget(team_subject(it.ids["search"]), {"day": Decimal("0.5")})
        statuses = [(await ask(it, who, model="dear")).status_code for who in ("mine", "only run") * 4]
        assert statuses[0] == 200
        assert statuses[-1] == 402
        assert await spent_usd(it, "teams", it.ids["search"]) <= Decimal("0.5")
        assert (await ask(it, "other team", model="dear")).status_code == 200
        refused = (await ask(it, "mine", model="dear")).json()["error"]
        assert refused["code"] == "budget_exceeded"
        assert "team" in refused["message"]


async def test_parallel_requests_of_one_key_cannot_exceed_its_budget(store_address: Address) -> None:
    async with keyed(store_address, team(workers=[DEAR], workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["alone"]), {"month": Decimal(1)})
        answers = await asyncio.gather(*(ask(it, "alone", model="dear") for _ in range(12)))
        assert {answer.status_code for answer in answers} == {200, 402}
        assert 0 < await spent_usd(it, "keys", it.ids["alone"]) <= 1


async def test_under_a_budget_an_unpriced_worker_is_rejected_but_not_a_free_one(
    store_address: Address,
) -> None:
    free, unknown = scripted("free"), {"name": "unknown", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "retry": {"attempts": 1}}  # fmt: skip
    async with keyed(store_address, team(workers=[free, unknown], workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal("0.01")})
        assert (await ask(it, "mine", model="free")).status_code == 200
        assert (await ask(it, "mine", model="unknown")).status_code == 402
        assert (await ask(it, "other team", model="unknown")).status_code == 502


async def test_a_call_cancelled_while_it_waits_for_a_slot_costs_nothing(store_address: Address) -> None:
    one_at_a_time = DEAR | {"max_concurrency": 1, "tokens_per_s": 100}
    async with keyed(store_address, team(workers=[one_at_a_time], workflows={})) as it:
        first = asyncio.create_task(ask(it, "alone", model="dear"))
        await until(lambda: it.api.worker("dear").open_calls == 1)
        queued = asyncio.create_task(ask(it, "mine", model="dear"))
        await until(lambda: it.api.service.pool.limiters["dear"].queued == 1)
        queued.cancel()
        await asyncio.wait([queued])
        assert (await first).status_code == 200
        assert await spent_usd(it, "keys", it.ids["mine"]) == 0
        assert await spent_usd(it, "keys", it.ids["alone"]) > 0
        assert await find_faults(await it.directory.open()) == []


async def test_a_call_cancelled_between_two_attempts_at_an_unreachable_server_costs_nothing(store_address: Address) -> None:  # fmt: skip
    away = {
        "name": "away", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "price": DEAR["price"],
        "retry": {"attempts": 8, "first_wait_s": 60, "max_wait_s": 60},
    }  # fmt: skip
    async with keyed(store_address, team(workers=[away], workflows={})) as it:
        asking = asyncio.create_task(ask(it, "mine", model="away"))
        # The first attempt fails immediately. The wait for the next is random, up to a minute.
        await asyncio.sleep(1.5)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: it.api.service.running == 0)
        assert await spent_usd(it, "keys", it.ids["mine"]) == 0
        assert await find_faults(await it.directory.open()) == []


async def test_an_administrator_sees_ledger_lines_and_worker_health(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK)
        await it.ask("other team", "POST", "/v1/chat/completions", ASK | {"model": "a"})
        id = answer.headers["x-podium-workflow-id"]
        path = f"/v1/admin/ledger?team={it.ids['search']}"
        # Posted in the background.
        while len(lines := (await it.ask("admin", "GET", path)).json()["data"]) < 2:
            await asyncio.sleep(0.02)
        assert {line["run_id"] for line in lines} == {id}
        cost = sum(Decimal(line["cost_usd"]) for line in lines)
        assert float(cost) == pytest.approx(answer.json()["podium"]["cost_usd"])
        while len((await it.ask("admin", "GET", "/v1/admin/ledger")).json()["data"]) < 3:  # of all teams
            await asyncio.sleep(0.02)
        page = (await it.ask("admin", "GET", "/v1/admin/ledger?limit=1")).json()
        older = (await it.ask("admin", "GET", f"/v1/admin/ledger?after={page['data'][0]['id']}")).json()
        assert (page["has_more"], older["has_more"], len(older["data"])) == (True, False, 2)
        workers = {each["id"]: each for each in (await it.ask("admin", "GET", "/v1/workers")).json()["data"]}
        assert (workers["a"]["open_calls"], workers["a"]["queued"], workers["a"]["failed"]) == (0, 0, 0)
        assert workers["a"]["succeeded"] == 2
        assert workers["a"]["first_token_p95_s"] is not None
        [a] = [
            each for each in (await it.ask("mine", "GET", "/v1/models")).json()["data"] if each["id"] == "a"
        ]
        assert a["podium"]["price"] == {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}


async def lines_of(it: Keyed, count: int) -> list[Any]:
    """Return at least `count` lines of the ledger, oldest first. They are posted in the background."""
    while len(lines := (await it.ask("admin", "GET", "/v1/admin/ledger")).json()["data"]) < count:
        await asyncio.sleep(0.02)
    return lines[::-1]


BIG_PRICE = {"input_usd_per_mtok": 100, "output_usd_per_mtok": 200}
TINY = scripted("tiny", "Instead.", price={"input_usd_per_mtok": 1, "output_usd_per_mtok": 2})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("model", ["big", "steps"])
async def test_the_ledger_charges_a_failover_to_the_answering_worker(
    tmp_path: Path, model: str, stream: bool
) -> None:
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: Answer(status=401, error="Wrong key.")
        big = {
            "name": "big",
            "kind": "openai",
            "model": "m",
            "base_url": f"{upstream.url}/v1",
            "price": BIG_PRICE,
        }
        workers = [big | {"fallbacks": ["tiny"]}, TINY]
        async with keyed(tmp_path, team(workers=workers, workflows={"steps": [step("big")]})) as it:
            await ask(it, "mine", model=model, stream=stream)
            refused, served = await lines_of(it, 2)
    assert (refused["worker"], Decimal(refused["cost_usd"])) == ("big", 0)
    assert served["worker"] == "tiny"
    tokens = (served["input_tokens"], served["output_tokens"])
    assert Decimal(served["cost_usd"]) == (Decimal(tokens[0]) + 2 * Decimal(tokens[1])) / 10**6


async def test_the_ledger_names_the_deployment_that_answered(tmp_path: Path) -> None:
    async with serving(OpenAIWire()) as away, serving(OpenAIWire()) as well:
        away.respond = lambda _: Answer(status=401, error="Wrong key.")
        places = [
            {"name": "us", "base_url": f"{away.url}/v1", "weight": 1_000_000},
            {"name": "eu", "base_url": f"{well.url}/v1", "weight": 0.000001},
        ]
        big = {"name": "big", "kind": "openai", "model": "m", "deployments": places, "price": BIG_PRICE}
        async with keyed(tmp_path, team(workers=[big], workflows={})) as it:
            await ask(it, "mine", model="big")
            lines = [(each["worker"], each["account"]) for each in await lines_of(it, 2)]
    assert lines == [("big", "us"), ("big", "eu")]


NO_THINKERS = [("openai", "m"), ("anthropic", "claude-haiku-4-5"), ("gemini", "gemini-2.0-flash")]


@pytest.mark.parametrize(("wire", "model"), NO_THINKERS)
async def test_a_stream_that_breaks_repeatedly_costs_about_what_was_streamed(
    tmp_path: Path, wire: str, model: str
) -> None:
    dialect, words = PROVIDERS[wire], "one two three four five six seven eight nine ten"
    cut = Answer(words, pause_after=dialect.first_word + 10, cut_after=dialect.first_word + 10)
    async with serving(dialect.wire) as upstream:
        upstream.respond = lambda _: cut
        own = {"name": "own", "kind": wire, "model": model, "base_url": upstream.url + dialect.path, "price": {"input_usd_per_mtok": 3, "output_usd_per_mtok": 15}}  # fmt: skip
        async with keyed(tmp_path, team(workers=[own], workflows={})) as it:
            await ask(it, "mine", model="own", stream=True)
            lines = await lines_of(it, 1)
            assert await spent_usd(it, "keys", it.ids["mine"]) < Decimal("0.01")
            assert await find_faults(await it.directory.open()) == []
            lines = await lines_of(it, len(upstream.requests))
    assert all(Decimal(each["cost_usd"]) < Decimal("0.004") for each in lines)
    assert all(Decimal(each["cost_usd"]) > Decimal("0.00001") for each in lines)
