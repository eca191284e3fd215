"""A run is paid by the key that asked for it and by the key's team, in a real store."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from serving.accounts.ledger_check import find_faults
from serving.accounts.windows import key_subject, team_subject
from serving.database.address import Address
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import ASK, scripted, team
from tests.states import until

CHAT = "/v1/chat/completions"
DEAR = scripted("dear", "A long answer. " * 40, price={"input_usd_per_mtok": 0, "output_usd_per_mtok": 1000}, max_output_tokens=400)  # fmt: skip


async def spent_usd(it: Keyed, whose: str, id: str) -> Decimal:
    """Today, once nothing is held any more: bills are written soon, not at once."""
    while True:
        day = (await it.ask("admin", "GET", f"/v1/admin/{whose}/{id}/budget")).json()["day"]
        if Decimal(day["held_usd"]) == 0:
            return Decimal(day["spent_usd"])
        await asyncio.sleep(0.05)


async def ask(it: Keyed, who: str, **body: Any) -> Any:
    return await it.ask(who, "POST", CHAT, ASK | body)


async def test_the_ledger_has_what_the_records_say_by_key_and_by_team(store_address: Address) -> None:
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


async def test_a_team_s_budget_holds_for_all_of_its_keys_and_for_nobody_else(store_address: Address) -> None:
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


async def test_parallel_requests_of_one_key_do_not_spend_the_same_cent(store_address: Address) -> None:
    async with keyed(store_address, team(workers=[DEAR], workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["alone"]), {"month": Decimal(1)})
        answers = await asyncio.gather(*(ask(it, "alone", model="dear") for _ in range(12)))
        assert {answer.status_code for answer in answers} == {200, 402}
        assert 0 < await spent_usd(it, "keys", it.ids["alone"]) <= 1


async def test_a_worker_without_a_price_is_refused_under_a_budget_and_a_free_one_is_not(
    store_address: Address,
) -> None:
    free, unknown = scripted("free"), {"name": "unknown", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "retry": {"attempts": 1}}  # fmt: skip
    async with keyed(store_address, team(workers=[free, unknown], workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal("0.01")})
        assert (await ask(it, "mine", model="free")).status_code == 200
        assert (await ask(it, "mine", model="unknown")).status_code == 402
        assert (await ask(it, "other team", model="unknown")).status_code == 502


async def test_who_leaves_while_its_call_waits_for_a_slot_pays_nothing_for_it(store_address: Address) -> None:
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


async def test_who_leaves_between_two_attempts_at_a_server_that_is_away_pays_nothing(store_address: Address) -> None:  # fmt: skip
    away = {
        "name": "away", "kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1", "price": DEAR["price"],
        "retry": {"attempts": 8, "first_wait_s": 60, "max_wait_s": 60},
    }  # fmt: skip
    async with keyed(store_address, team(workers=[away], workflows={})) as it:
        asking = asyncio.create_task(ask(it, "mine", model="away"))
        await asyncio.sleep(1.5)  # its first attempt was refused at once; the next is drawn from a minute
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: it.api.service.running == 0)
        assert await spent_usd(it, "keys", it.ids["mine"]) == 0
        assert await find_faults(await it.directory.open()) == []


async def test_an_administrator_sees_the_ledgers_lines_and_how_workers_are_doing(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        answer = await it.ask("mine", "POST", "/v1/chat/completions", ASK)
        await it.ask("other team", "POST", "/v1/chat/completions", ASK | {"model": "a"})
        id = answer.headers["x-podium-workflow-id"]
        path = f"/v1/admin/ledger?team={it.ids['search']}"
        while len(lines := (await it.ask("admin", "GET", path)).json()["data"]) < 2:  # posted soon
            await asyncio.sleep(0.02)
        assert {line["run_id"] for line in lines} == {id}
        cost = sum(Decimal(line["cost_usd"]) for line in lines)
        assert float(cost) == pytest.approx(answer.json()["podium"]["cost_usd"])
        while len((await it.ask("admin", "GET", "/v1/admin/ledger")).json()["data"]) < 3:  # of all teams
            await asyncio.sleep(0.02)
        page = (await it.ask("admin", "GET", "/v1/admin/ledger?limit=1")).json()
        older = (await it.ask("admin", "GET", f"/v1/admin/ledger?after={page['data'][0]['id']}")).json()
        assert (page["has_more"], older["has_more"], len(older["data"])) == (True, False, 2)
        found = {each["id"]: each for each in (await it.ask("admin", "GET", "/v1/workers")).json()["data"]}
        assert (found["a"]["open_calls"], found["a"]["queued"], found["a"]["failed"]) == (0, 0, 0)
        assert found["a"]["succeeded"] == 2
        assert found["a"]["first_token_p95_s"] is not None
        [a] = [
            each for each in (await it.ask("mine", "GET", "/v1/models")).json()["data"] if each["id"] == "a"
        ]
        assert a["podium"]["price"] == {"input_usd_per_mtok": 1.0, "output_usd_per_mtok": 2.0}
