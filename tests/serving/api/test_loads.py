"""References in requests: how much is loaded and unpacked, in which order, and whose limits count."""

import asyncio
import random
import time
import zlib
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import text

from conductor.model.messages import Message
from conductor.run.record import Account, RunRecords
from serving.accounts.account_ledgers import AccountLedgers
from serving.accounts.replica_store import ReplicaStore
from serving.api.dialects.read_body import PartCount
from serving.api.dialects.responses.compaction import pack, unpack
from serving.api.dialects.responses.earlier import MOST_RESPONSES
from serving.database.address import Address
from serving.sessions.run_admission import SMALL_BYTES
from serving.settings.sections import LimitSettings
from serving.store.database_store import DatabaseStore
from serving.store.memory_store import MemoryStore
from serving.store.store import StoreListener
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Json, Served, scripted, served, team
from tests.serving.api.test_policies import limit
from tests.serving.api.tool_caller import tool_caller
from tests.states import least_cpu_s, until

PATH, COUNT, CHAT = "/v1/responses", "/v1/responses/input_tokens", "/v1/chat/completions"
ANOTHER = Account("key_another", "team_another")


class CountingStore(MemoryStore):
    n_loaded = 0

    async def get(self, id: str) -> RunRecords | None:
        self.n_loaded += 1
        return await super().get(id)


class CountingDatabase(DatabaseStore):
    n_loaded = 0

    async def get(self, id: str) -> RunRecords | None:
        self.n_loaded += 1
        return await super().get(id)

    async def find_waiting(self, id: str) -> RunRecords | None:
        self.n_loaded += 1
        return await super().find_waiting(id)


def one_worker(**limits: int) -> Json:
    return team(workers=[scripted("a", "One.")], workflows={}, limits=limits)


async def respond(api: Served, words: str) -> str:
    answer = await api.http.post(PATH, json={"model": "a", "input": words})
    assert answer.status_code == 200, answer.text
    return answer.json()["id"]


def referring(*responses: str, index: str = "i0") -> Json:
    """Return a request that refers to the first input of each response, or to the item `index`."""
    ids = [f"msg_{each.removeprefix('resp_')}_{index}" for each in responses]
    return {"model": "a", "input": [{"type": "item_reference", "id": id} for id in ids]}


async def test_referenced_items_are_loaded_only_up_to_the_text_limit() -> None:
    store = CountingStore(LimitSettings)
    async with served(one_worker(max_text_bytes=10_000), open_store=lambda _: store) as api:
        responses = [await respond(api, f"{n} {'x' * 6000}") for n in range(8)]
        for path in (PATH, COUNT):
            store.n_loaded = 0
            answer = await api.http.post(path, json=referring(*responses))
            assert (answer.status_code, store.n_loaded) == (413, 2)
            assert "limits.max_text_bytes" in answer.json()["error"]["message"]


async def test_long_responses_are_loaded_only_up_to_the_body_limit() -> None:
    store, limits = CountingStore(LimitSettings), {"max_text_bytes": 10_000, "max_body_bytes": 20_000}
    async with served(one_worker(**limits), open_store=lambda _: store) as api:
        responses = [await respond(api, f"{n} {'x' * 8000}") for n in range(8)]
        store.n_loaded = 0
        answer = await api.http.post(PATH, json=referring(*responses, index="0"))
        error = answer.json()["error"]
        assert (answer.status_code, error["param"], store.n_loaded) == (413, "input", 3)


async def test_too_many_referenced_responses_are_rejected_before_any_is_loaded() -> None:
    store = CountingStore(LimitSettings)
    async with served(one_worker(), open_store=lambda _: store) as api:
        missing = [f"resp_{n:032x}00" for n in range(MOST_RESPONSES + 1)]
        answer = await api.http.post(PATH, json=referring(*missing))
        assert (answer.status_code, answer.json()["error"]["param"], store.n_loaded) == (400, "input", 0)


async def test_a_conversation_over_the_body_limit_is_not_loaded() -> None:
    async with served(one_worker(max_body_bytes=20_000, max_text_bytes=20_000)) as api:
        conversation = (await api.http.post("/v1/conversations", json={})).json()["id"]
        item = {"type": "message", "role": "user", "content": "x" * 9000}
        body = {"model": "a", "input": "Hi.", "conversation": conversation}
        for n, status in ((2, 200), (1, 413)):
            for _ in range(n):
                added = await api.http.post(f"/v1/conversations/{conversation}/items", json={"items": [item]})
                assert added.status_code == 200
            counted = await api.http.post(COUNT, json=body)
            assert counted.status_code == status
        assert "limits.max_body_bytes" in counted.json()["error"]["message"]


async def test_loaded_texts_count_towards_the_memory_for_runs() -> None:
    async with served(one_worker(max_running_bytes=400_000)) as api:
        response = await respond(api, "x" * 100_000)
        conversation = (await api.http.post("/v1/conversations", json={})).json()["id"]
        item = {"type": "message", "role": "user", "content": "x" * 100_000}
        await api.http.post(f"/v1/conversations/{conversation}/items", json={"items": [item]})
        await api.quiet()
        memory = api.service.sessions.admission.memory
        bodies = (
            referring(response),
            {"previous_response_id": response, "input": "Hi."},
            {"conversation": conversation, "input": "Hi."},
        )
        for body in bodies:
            assert (await api.http.post(COUNT, json=body)).status_code == 200
            with memory.occupy(ANOTHER, 350_000):
                refused = await api.http.post(COUNT, json=body)
            assert (refused.status_code, refused.json()["error"]["param"]) == (
                429,
                "limits.max_running_bytes",
            )


@asynccontextmanager
async def open_counting(
    address: Address, settings: Json
) -> AsyncGenerator[tuple[Served, CountingDatabase, ReplicaStore]]:
    """A router whose database counts loads."""
    store, opened = ReplicaStore(address, renew_s=60), list[CountingDatabase]()

    def open_store(listener: StoreListener) -> DatabaseStore:
        opened.append(CountingDatabase(store, LimitSettings, sweep_s=60, listener=listener))
        return opened[0]

    ledgers = AccountLedgers(store)
    async with aclosing(store), served(settings, open_store=open_store, ledgers=ledgers) as api:
        yield api, opened[0], store
        await opened[0].aclose()


async def until_written(api: Served, records: DatabaseStore) -> None:
    await api.quiet()
    await until(lambda: not records.n_unwritten, "the run is written")


def check_rejected(answer: httpx2.Response) -> None:
    param = answer.json()["error"]["param"]
    assert (answer.status_code, param) == (429, "limits.max_running_bytes")


async def test_a_stored_response_that_does_not_fit_into_memory_is_not_loaded(store_address: Address) -> None:
    async with open_counting(store_address, one_worker(max_running_bytes=400_000)) as (api, records, store):
        response = await respond(api, random.Random(1).randbytes(100_000).hex())
        await until_written(api, records)
        run, records.n_loaded = f"wf_{response[5:37]}", 0
        info = await records.info(run)
        assert info is not None
        assert info.n_bytes > 2 * 100_000, "the record has the text in the prompt of its step too"
        body = {"previous_response_id": response, "input": "Hi."}
        with api.service.sessions.admission.memory.occupy(ANOTHER, 399_000):
            check_rejected(await api.http.post(COUNT, json=body))
            check_rejected(await api.http.get(f"/v1/workflows/{run}"))
        assert records.n_loaded == 0
        assert (await api.http.post(COUNT, json=body)).status_code == 200

        async with (await store.database()).writing() as connection:
            await connection.execute(text("UPDATE run SET body = NULL"))
        info = await records.info(run)
        assert info is not None
        assert info.n_bytes > SMALL_BYTES, "a run without a record is loaded from its events"
        assert await records.info(f"wf_{'0' * 32}") is None


async def test_routes_that_need_only_the_owner_of_a_run_load_no_record(store_address: Address) -> None:
    async with open_counting(store_address, one_worker()) as (api, records, store):
        run = f"/v1/workflows/wf_{(await respond(api, 'Hi.'))[5:37]}"
        await until_written(api, records)
        records.n_loaded = 0
        rated = await api.http.post(f"{run}/feedback", json={"comment": "Good."})
        assert (rated.status_code, rated.json().get("comment")) == (200, "Good."), rated.text
        assert "finished" in (await api.http.get(f"{run}/events")).text
        assert (await api.http.get(f"/v1/workflows?after={run[14:]}")).json()["data"] == []
        assert records.n_loaded == 0
        assert (await api.http.post(f"{run}/cancel")).json()["status"] == "finished"
        assert records.n_loaded == 1, "the answer shows the record"

        async with (await store.database()).writing() as connection:
            await connection.execute(text("UPDATE run SET body = NULL"))
            await connection.execute(text("DELETE FROM run_event"))
        refused = await api.http.post(f"{run}/feedback", json={"comment": "Good."})
        assert "texts of this run are no longer stored" in refused.text


async def test_an_earlier_answer_too_large_for_the_memory_limit_is_not_loaded(
    store_address: Address,
) -> None:
    long = random.Random(1).randbytes(100_000).hex()
    workers = [scripted("a", *[long] * 9), tool_caller("b")]
    settings = team(
        workers=workers, workflows={}, limits={"max_running_bytes": 4_000_000}, cache={"keep_s": 60}
    )
    async with open_counting(settings=settings, address=store_address) as (api, records, _):
        chat = ASK | {"model": "a"}
        named, cached = (
            {"headers": {"Idempotency-Key": "1"}, "json": chat},
            {"json": chat | {"podium": {"cache": True}}},
        )
        tools = [{"type": "function", "function": {"name": "look"}}]
        for sent in (named, cached):
            assert (await api.http.post(CHAT, **sent)).status_code == 200
        long_question = [{"role": "user", "content": long}]
        answer = await api.http.post(CHAT, json={"model": "b", "messages": long_question, "tools": tools})
        (call,) = answer.json()["choices"][0]["message"]["tool_calls"]
        turns: list[Json] = [*ASK["messages"], {"role": "assistant", "tool_calls": [call]}]
        turns += [{"role": "tool", "tool_call_id": call["id"], "content": "R."}]
        follow_up = {"json": {"model": "b", "messages": turns, "tools": tools}}
        await until_written(api, records)
        records.n_loaded = 0
        with api.service.sessions.admission.memory.occupy(ANOTHER, 3_999_000):
            check_rejected(await api.http.post(CHAT, **named))
            check_rejected(await api.http.post(CHAT, **follow_up))
            assert records.n_loaded == 0
            missed = await api.http.post(CHAT, **cached)
            assert (missed.status_code, "x-podium-cache" in missed.headers) == (200, False)
            assert records.n_loaded == 0
        for sent in (named, follow_up):
            assert (await api.http.post(CHAT, **sent)).status_code == 200
        assert records.n_loaded > 0


async def test_loads_take_turns_and_one_slot_is_reserved_for_other_teams(tmp_path: Path) -> None:
    async with keyed(tmp_path, one_worker()) as it, AsyncExitStack() as places:

        async def count(who: str) -> int:
            body = {"previous_response_id": responses[who]}
            return (await it.ask(who, "POST", COUNT, body)).status_code

        responses = {
            who: (await it.ask(who, "POST", PATH, {"model": "a", "input": "Hi."})).json()["id"]
            for who in ("mine", "other team")
        }
        await it.api.quiet()
        # The slot is reserved for teams that have loaded something lately.
        assert await count("other team") == 200
        mine = Account(it.ids["mine"], it.ids["search"])
        for _ in range(3):
            await places.enter_async_context(it.api.service.sessions.admission.loads.turn(mine))

        waiting = asyncio.create_task(count("mine"))
        loads: Any = it.api.service.sessions.admission.loads
        await until(lambda: loads.is_waited_for, "the load waits")
        assert (await count("other team"), waiting.done()) == (200, False)
        await places.aclose()
        assert await waiting == 200


async def test_requests_that_fail_while_they_load_count_towards_the_rate_limits(tmp_path: Path) -> None:
    async with keyed(tmp_path, one_worker()) as it:
        await limit(it, "keys", "mine", requests_per_minute=3)
        first = await it.ask("mine", "POST", PATH, {"model": "a", "input": "Hi."})
        body = {"model": "a", "input": "And?", "previous_response_id": first.json()["id"]}
        again = await it.ask("mine", "POST", PATH, body)
        assert (again.status_code, again.headers["x-ratelimit-remaining-requests"]) == (200, "1")
        missing = body | {"previous_response_id": f"resp_{'0' * 34}"}
        statuses = [(await it.ask("mine", "POST", PATH, missing)).status_code for _ in range(3)]
        assert statuses == [400, 429, 429]


async def test_a_long_conversation_is_compacted_in_a_thread() -> None:
    random.seed(1)
    words = " ".join(random.choice(("alpha", "beta", "gamma", "delta", "sum", "of")) for _ in range(600_000))
    began_s = time.thread_time()
    zlib.compress(words.encode(), 9)
    alone_s = time.thread_time() - began_s
    async with served(one_worker()) as api:

        async def compact() -> None:
            answer = await api.http.post(f"{PATH}/compact", json={"model": "a", "input": words})
            assert answer.status_code == 200

        took_s = await least_cpu_s(compact, alone_s / 2)
    assert took_s < alone_s / 2, "the thread of the event loop also sends and reads the request"


async def test_compacted_items_are_unpacked_in_a_thread() -> None:
    item = pack(tuple(Message.of("user", "word " * 700) for _ in range(2000)), 20_000_000)
    began_s = time.thread_time()
    for _ in range(4):
        unpack(item, "input[0]", PartCount(20_000_000))
    alone_s = time.thread_time() - began_s
    items = [{"type": "compaction", "encrypted_content": item} for _ in range(4)]
    async with served(one_worker()) as api:

        async def reject() -> None:
            assert (await api.http.post(PATH, json={"model": "a", "input": items})).status_code == 413

        took_s = await least_cpu_s(reject, alone_s / 2)
    assert took_s < alone_s / 2, "the event loop unpacks nothing"
