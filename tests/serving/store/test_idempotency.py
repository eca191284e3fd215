"""Idempotent requests, which run once across retries and replicas, and runs that continue when their client leaves."""

import asyncio
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx2
import pytest

from serving.accounts.account_ledger import WAIT_S
from serving.accounts.hold import key_subject
from serving.database.address import Address
from tests.databases import make_file
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, PRICE, Served, answer_text, parsed, scripted, served, team
from tests.serving.store.stores import Replica, replicas
from tests.states import until

WORDS = " ".join(f"word{n}" for n in range(40))
PACED = team(
    workers=[
        scripted("a", "A reason.", price=PRICE),
        scripted("b", WORDS, tokens_per_s=60, price=PRICE),
        scripted("c"),
    ],
    limits={"first_byte_s": 0},
)
KEY = {"idempotency-key": "mine-1"}


async def ask(api: Served, name: str = "mine-1", **body: Any) -> httpx2.Response:
    headers = {"idempotency-key": name}
    return await api.http.post("/v1/chat/completions", json=ASK | body, headers=headers)


def calls(*routers: Replica) -> int:
    return sum(len(each.api.worker(name).calls) for each in routers for name in ("conductor", "a", "b"))


async def until_ended(api: Served, id: str) -> dict[str, Any]:
    while (record := (await api.http.get(f"/v1/workflows/{id}")).json()).get("status") in (None, "running"):
        await asyncio.sleep(0.02)
    return record


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_gets_the_same_answer_without_a_new_run(
    stream: bool, store_address: Address
) -> None:
    async with replicas(store_address) as (one, other):
        first = await ask(one.api, stream=stream)
        for router in (one, other):
            again = await ask(router.api, stream=stream)
            assert again.headers["x-podium-workflow-id"] == first.headers["x-podium-workflow-id"]
            if stream:
                assert (
                    answer_text(parsed(again.text))
                    == answer_text(parsed(first.text))
                    == "Blue light scatters most."
                )
                assert parsed(again.text)[-2]["podium"] == parsed(first.text)[-2]["podium"]
            else:
                assert again.json() == first.json()
        assert calls(one, other) == 3
        assert (await ask(other.api, "mine-2")).headers["x-podium-workflow-id"] != first.headers["x-podium-workflow-id"]  # fmt: skip
        assert calls(one, other) == 6


async def test_a_repeated_request_gets_the_restarted_answer_complete(
    store_address: Address,
) -> None:
    breaks = {"text": WORDS, "fail_after_tokens": 4}
    workers = [scripted("a", breaks, fallbacks=["b"]), scripted("b", "Something else.")]
    settings = team(workers=workers, workflows={})
    async with replicas(store_address, settings) as (one, other):
        broken = await ask(one.api, model="a", stream=True)
        assert answer_text(parsed(broken.text)) == "word0 word1 word2 word3"
        assert parsed(broken.text)[-2]["error"]["code"] == "interrupted"
        id = broken.headers["x-podium-workflow-id"]
        for router in (one, other):
            assert (await until_ended(router.api, id))["answer"] == "Something else."
            again = await ask(router.api, model="a", stream=True)
            assert again.headers["x-podium-workflow-id"] == id
            assert answer_text(parsed(again.text)) == "Something else."
            assert not any("error" in each for each in parsed(again.text))


async def test_another_body_with_the_same_idempotency_key_is_rejected(store_address: Address) -> None:
    async with replicas(store_address) as (one, other):
        await ask(one.api)
        for router in (one, other):
            refused = await ask(router.api, temperature=0.5)
            assert (refused.status_code, refused.json()["error"]["code"]) == (422, "idempotency_key_reused")
        assert calls(one, other) == 3


@pytest.mark.parametrize("name", ["", "x" * 256, "tab\there"])
async def test_an_invalid_idempotency_key_is_rejected(name: str) -> None:
    async with served(team()) as api:
        answer = await ask(api, name)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Idempotency-Key")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_joins_the_running_one_on_any_replica(
    stream: bool, store_address: Address
) -> None:
    async with replicas(store_address, PACED) as (one, other):
        first = asyncio.create_task(ask(one.api, stream=stream))
        await until(lambda: one.api.worker("b").open_calls == 1)
        joined = await asyncio.gather(*(ask(router.api, stream=stream) for router in (one, other)))
        answers = [await first, *joined]
        if stream:
            assert [answer_text(parsed(each.text)) for each in answers] == [WORDS] * 3
        else:
            assert [each.json()["choices"][0]["message"]["content"] for each in answers] == [WORDS] * 3
            assert answers[0].json() == answers[1].json() == answers[2].json()
        assert calls(one, other) == 3


@pytest.mark.parametrize("how", ["key", "keep", "stream"])
async def test_an_idempotent_run_continues_without_its_client_and_can_be_joined(
    how: str, store_address: Address
) -> None:
    async with replicas(store_address, PACED) as (one, other):
        body = {"stream": how == "stream"}
        sent = one.api.post(keep=True) if how == "keep" else ask(one.api, **body)
        asking = asyncio.create_task(sent)
        await until(lambda: one.api.worker("b").open_calls == 1)
        (id,) = one.api.service.sessions.running
        asking.cancel()
        await asyncio.wait([asking])
        assert one.api.service.running == 1
        if how != "keep":
            again = await ask(other.api, **body)
            assert again.headers["x-podium-workflow-id"] == id
        assert (await until_ended(other.api, id))["status"] == "finished"
        assert calls(one, other) == 3


async def test_a_run_without_an_idempotency_key_is_cancelled_with_its_client() -> None:
    async with served(PACED) as api:
        asking = asyncio.create_task(api.http.post("/v1/chat/completions", json=ASK))
        await until(lambda: api.worker("b").open_calls == 1)
        asking.cancel()
        await asyncio.wait([asking])
        await until(lambda: api.service.running == 0)
        assert (await api.newest())["status"] == "cancelled"


async def test_a_background_request_returns_its_id_immediately(store_address: Address) -> None:
    settings = team(workers=[scripted("a", WORDS, tokens_per_s=8)], workflows={})
    async with replicas(store_address, settings) as (one, other):
        answer = await one.api.post({"model": "a"}, background=True)
        assert (answer.status_code, answer.json()["status"]) == (202, "running")
        record = await until_ended(other.api, answer.json()["id"])
        assert (record["status"], record["answer"]) == ("finished", WORDS)


async def test_a_request_that_could_not_run_frees_its_idempotency_key() -> None:
    async with served(PACED | {"limits": {"max_running": 1}}) as api:
        first = asyncio.create_task(ask(api, "first"))
        await until(lambda: api.service.running == 1)
        assert (await ask(api)).status_code == 429
        await first
        assert (await ask(api)).status_code == 200


async def test_without_a_database_idempotency_keys_work_per_replica() -> None:
    async with served(team()) as api:
        first, again = await ask(api), await ask(api)
        assert first.json() == again.json()
        assert len(api.worker("conductor").calls) == 1


async def test_without_a_database_a_keys_names_evict_no_others(tmp_path: Path) -> None:
    settings = team(limits={"records": 5}, workflows={})
    async with keyed(tmp_path, settings) as it:

        async def send(who: str, name: str) -> str:
            headers = {"idempotency-key": name}
            answer = await it.ask(who, "POST", "/v1/chat/completions", ASK | {"model": "a"}, headers)
            assert answer.status_code == 200, answer.text
            return answer.headers["x-podium-workflow-id"]

        first = await send("mine", "order-1")
        others = [await send("other team", f"n{n}") for n in range(10)]
        assert await send("mine", "order-1") == first
        assert await send("other team", "n9") == others[9]
        assert await send("other team", "n0") != others[0], "its own oldest went"


async def test_a_repeated_failed_request_fails_again_without_a_call() -> None:
    async with served(team(workers=[scripted("a", {"error": "refused"})], workflows={})) as api:
        first = await ask(api, model="a")
        again = await ask(api, model="a")
        assert (first.status_code, again.status_code) == (502, 502)
        assert len(api.worker("a").calls) == 1


async def test_a_retryable_failure_before_any_call_frees_the_idempotency_key(
    store_address: Address,
) -> None:
    slow = [scripted("a", "Done.", delay_s=1.5 * WAIT_S, price=PRICE), scripted("b"), scripted("c")]
    async with keyed(store_address, team(workers=slow, workflows={})) as it:
        await it.directory.set_budget(key_subject(it.ids["mine"]), {"day": Decimal("0.0083")})

        async def send(name: str) -> httpx2.Response:
            headers = {"idempotency-key": name}
            return await it.ask("mine", "POST", "/v1/chat/completions", ASK | {"model": "a"}, headers)

        first = asyncio.create_task(send("first"))
        await until(lambda: it.api.worker("a").open_calls == 1)
        refused = await send("second")
        assert (refused.status_code, refused.headers["x-should-retry"]) == (402, "true")
        assert (await first).status_code == 200
        answers = await asyncio.gather(send("second"), send("second"))
        assert [each.status_code for each in answers] == [200, 200], answers[0].text
        assert len({each.headers["x-podium-workflow-id"] for each in (refused, *answers)}) == 2
        assert len(it.api.worker("a").calls) == 2


async def test_an_idempotency_key_with_a_secret_is_not_stored_but_works(
    tmp_path: Path,
) -> None:
    path = tmp_path / "podium.db"
    names = ["gl" + "pat-" + "aB3k_" * 4, "ada.lovelace@example.org"]
    async with replicas(make_file(path)) as (one, other):
        for name in names:
            first, again = await ask(one.api, name), await ask(other.api, name)
            assert first.headers["x-podium-workflow-id"] == again.headers["x-podium-workflow-id"]
    assert not [name for name in names if name.encode() in _files(tmp_path)]


def _files(folder: Path) -> bytes:
    return b"".join(each.read_bytes() for each in folder.iterdir())
