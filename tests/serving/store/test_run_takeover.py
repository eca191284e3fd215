"""Kept runs of routers that stop or are killed, continued by other routers."""

import asyncio
import json
import random
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path

import httpx2
import pytest

from conductor.run.events import CallQueued
from serving.database.address import Address
from serving.sessions.following import ASK_S
from serving.store.idempotency import Claim
from tests.serving.api.served import ASK, PRICE, answer_text, parsed, scripted, team
from tests.serving.sessions.test_following import events_of
from tests.serving.store.stores import Replica, replicas
from tests.serving.store.test_idempotency import ask, calls, until_ended
from tests.states import until

pytestmark = pytest.mark.postgresql

ROOT = Path(__file__).parents[3]
WORDS = " ".join(f"word{n}" for n in range(60))
HALTING = {"text": WORDS, "stall_after_tokens": 20}
KEY = {"idempotency-key": "mine-1"}
CHILD = """
import asyncio, json, sys
from serving.database.address import parse_address
from tests.serving.store.stores import replicas
async def main():
    said = json.loads(sys.stdin.readline())
    async with replicas(parse_address(said["address"]), said["settings"], n=1) as (one,):
        print(json.dumps({"url": one.api.url, "owner": one.store.owner}), flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""
PAID = """INSERT INTO ledger (run_id, hold_id, kind, exact, amount, key_id, day, month, above_hold, at_us)
VALUES (:id, :hold, 'call', :exact, :pico, 'k', 1, 1, 0, 1)"""


def settings(answer: object) -> dict[str, object]:
    workers = [
        scripted("a", "A reason.", price=PRICE),
        scripted("b", answer, tokens_per_s=400, price=PRICE),
        scripted("c"),
    ]
    return team(workers=workers, limits={"first_byte_s": 0})


@asynccontextmanager
async def router_process(address: Address) -> AsyncGenerator[tuple[subprocess.Popen[str], str, str]]:
    """Run a router in a subprocess. Yield the process, its URL and its id in the store."""
    process = subprocess.Popen(  # noqa: ASYNC220 (it only starts it)
        [sys.executable, "-c", CHILD], cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdin
        assert process.stdout
        where = address.dsn or f"sqlite:///{address.path}"
        process.stdin.write(json.dumps({"address": where, "settings": settings(HALTING)}) + "\n")
        process.stdin.flush()
        details = json.loads(await asyncio.to_thread(process.stdout.readline))
        yield process, details["url"], details["owner"]
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)


async def expire_lease(router: Replica, owner: str) -> None:
    """Expire the lease of a killed router."""
    await router.change("UPDATE replica SET lease_until_us = 1 WHERE id = :owner", owner=owner)


async def until_it_halts(router: Replica, id: str) -> None:
    """Wait until the store has the whole answer except the last word, which waits for its end."""
    while True:
        items = (await router.records.events(id, 0)).items
        if "".join(getattr(item.event, "text", "") for item in items) == " ".join(WORDS.split()[:19]) + " ":
            return
        await asyncio.sleep(0.02)


async def test_a_dead_routers_claimed_request_is_run_once_by_a_waiting_router(
    store_address: Address,
) -> None:
    path, body = "/v1/chat/completions", json.dumps(ASK).encode()
    async with replicas(store_address) as (one, other):
        claim = Claim("", "mine-1", sha256(path.encode() + b"\0" + body).hexdigest(), "wf_1", one.store.owner)
        assert await one.records.claim(claim) == claim

        async def post() -> httpx2.Response:
            headers = KEY | {"content-type": "application/json"}
            return await other.api.http.post(path, content=body, headers=headers)

        waiting = [asyncio.create_task(post()) for _ in range(2)]
        await asyncio.wait(waiting, timeout=2 * ASK_S)
        assert not any(each.done() for each in waiting), "its router lives"
        await expire_lease(other, one.store.owner)
        answers = await asyncio.wait_for(asyncio.gather(*waiting), timeout=6 * ASK_S)
        assert [answer.status_code for answer in answers] == [200, 200]
        assert answers[0].json() == answers[1].json()
        assert calls(one, other) == 3


@pytest.mark.real_time
async def test_another_router_finishes_a_killed_routers_run_without_lost_text(
    store_address: Address,
) -> None:
    async with (
        replicas(store_address, settings(WORDS), n=1) as (other,),
        router_process(store_address) as (process, url, owner),
    ):
        async with httpx2.AsyncClient(base_url=url, timeout=20) as http:
            first = asyncio.create_task(
                http.post("/v1/chat/completions", json=ASK | {"stream": True}, headers=KEY)
            )
            while not (listed := (await other.api.http.get("/v1/workflows")).json()["data"]):
                await asyncio.sleep(0.02)
            id = listed[0]["id"]
            await until_it_halts(other, id)
            joined = asyncio.create_task(ask(other.api, stream=True))
            whole = asyncio.create_task(other.api.http.get(f"/v1/workflows/{id}/events"))
            process.kill()
            with pytest.raises(httpx2.HTTPError):
                await first
        await expire_lease(other, owner)
        assert await other.records.sweep() == 0
        assert await other.records.take_over() == 1
        answer = await joined
        assert answer_text(parsed(answer.text)) == WORDS
        assert answer.headers["x-podium-workflow-id"] == id
        record = await until_ended(other.api, id)
        assert (record["status"], record["answer"], record["unmetered_calls"]) == ("finished", WORDS, 1)
        assert [step["output"] for step in record["steps"]] == ["A reason.", WORDS]
        assert [attempt["outcome"] for attempt in record["steps"][1]["attempts"]] == ["cut"]
        assert calls(other) == 1, "the plan and the finished step are not asked for again"
        events = [event for _, event in events_of((await whole).text)]
        assert "resumed" in [event["type"] for event in events]
        assert "".join(event["text"] for event in events if event["type"] == "answer") == WORDS, (
            "no word twice"
        )
        assert await other.records.take_over() == 0


async def stop_with_a_run(address: Address) -> str:
    """Stop a router while it writes the answer of a kept run. Return the id of the run."""
    async with replicas(address, settings(HALTING), n=1) as (one,):
        answer = asyncio.create_task(ask(one.api))
        await until(lambda: one.api.service.running == 1)
        (id,) = one.api.service.sessions.running
        await until_it_halts(one, id)
        await one.api.service.aclose()
        assert (await answer).json()["error"]["code"] == "interrupted"
        await one.store.aclose()
    return id


async def test_a_stopping_router_hands_its_background_run_to_another(store_address: Address) -> None:
    async with replicas(store_address, settings(WORDS), n=1) as (other,):
        id = await stop_with_a_run(store_address)
        assert (await other.api.record(id))["status"] == "detached"
        assert await other.records.take_over() == 1
        assert (await ask(other.api)).json()["choices"][0]["message"]["content"] == WORDS
        assert calls(other) == 1


async def test_a_run_found_by_two_sweeps_is_continued_once(
    store_address: Address,
) -> None:
    async with replicas(store_address, settings(WORDS), n=1) as (other,):
        id = await stop_with_a_run(store_address)
        find_seq, first_sweep = other.records.newest_seq, asyncio.Event()

        async def find_seq_late(id: str) -> int:
            seq = await find_seq(id)
            # Delays the first sweep, while the second finds, continues and ends the run.
            if not first_sweep.is_set():
                first_sweep.set()
                await asyncio.sleep(5)
            return seq

        other.records.newest_seq = find_seq_late  # pyright: ignore[reportAttributeAccessIssue]
        sweeps = asyncio.gather(other.records.take_over(), other.records.take_over())
        await first_sweep.wait()
        assert sum(await sweeps) == 1
        await until_ended(other.api, id)
        assert calls(other) == 1


async def test_a_follower_of_a_run_is_notified_of_its_new_answer(store_address: Address) -> None:
    async with replicas(store_address, settings("Something else."), n=1) as (other,):
        async with replicas(store_address, settings(HALTING), n=1) as (one,):
            id = (await one.api.post(background=True)).json()["id"]
            await until_it_halts(one, id)
            newest = max(item.seq for item in (await one.records.events(id, 0)).items)
            await one.api.service.aclose()
            await one.store.aclose()
        assert await other.records.take_over() == 1
        for after in (0, newest):
            events = events_of((await other.api.http.get(f"/v1/workflows/{id}/events?after={after}")).text)
            (again,) = [n for n, (_, event) in enumerate(events) if event["type"] == "answer_restarted"]
            said_again = [event["text"] for _, event in events[again:] if event["type"].startswith("answer")]
            assert "".join(said_again) == "Something else."


@pytest.mark.parametrize("goes_on", [True, False])
async def test_a_call_with_an_unwritten_end_is_billed_in_the_continued_run(
    goes_on: bool, store_address: Address
) -> None:
    others = settings("Done.") if goes_on else team(workers=[scripted("a"), scripted("c")], workflows={})
    async with (
        replicas(store_address, others, n=1) as (other,),
        replicas(store_address, settings(HALTING), n=1) as (one,),
    ):
        id = (await one.api.post(background=True)).json()["id"]
        await until_it_halts(one, id)
        await one.change(PAID, id=id, hold="1", exact=1, pico=50_000_000_000)
        await one.change(PAID, id=id, hold="2", exact=0, pico=70_000_000_000)
        await expire_lease(other, one.store.owner)
        assert await other.records.take_over() == 1
        record = await until_ended(other.api, id)
        await one.api.service.sessions.cancel(id)
    assert record["status"] == ("finished" if goes_on else "failed")
    again_usd = record["steps"][1]["cost_usd"] if goes_on else 0.0
    assert record["cost_usd"] == pytest.approx(0.05 + again_usd)
    assert record["unmetered_calls"] == 1
    assert 0.04 < record["lost_usd"] < 0.05, "the plan and the first step are on record themselves"


async def test_a_frozen_replica_writes_nothing_to_a_run_that_was_taken_over(
    store_address: Address,
) -> None:
    async with (
        replicas(store_address, settings(WORDS), n=1) as (other,),
        replicas(store_address, settings(HALTING), n=1) as (one,),
    ):
        first = asyncio.create_task(ask(one.api))
        await until(lambda: one.api.service.running == 1)
        (id,) = one.api.service.sessions.running
        await until_it_halts(one, id)
        await expire_lease(other, one.store.owner)
        assert await other.records.take_over() == 1
        assert (await until_ended(other.api, id))["answer"] == WORDS
        one.records.note(
            one.api.service.sessions.running[id].record, 99, CallQueued(1.0, 0, 1, "b", "It went on.")
        )
        assert (await first).json()["error"]["code"] == "interrupted", "it stops, rather than pay twice"
        await one.records.aclose()
        assert (await other.api.record(id))["status"] == "finished"


async def test_a_background_run_that_keeps_killing_its_routers_is_given_up(store_address: Address) -> None:
    async with replicas(store_address, settings(HALTING), n=1) as (one,):
        answer = await one.api.post(background=True)
        id = answer.json()["id"]
        await until_it_halts(one, id)
        await one.change("UPDATE run SET takes = 3, owner = 'dead' WHERE id = :id", id=id)
        assert await one.records.take_over() == 0
        assert await one.records.sweep() == 1
        assert (await one.rows("SELECT status FROM run WHERE id = :id", id=id))[0][0] == "lost"
        await one.api.service.sessions.cancel(id)


@pytest.mark.parametrize("words", [random.Random(1).randbytes(50_000).hex(), "x" * 100_000])
async def test_runs_for_which_there_is_no_memory_are_taken_over_later(
    words: str, store_address: Address
) -> None:
    small = settings(HALTING) | {"limits": {"first_byte_s": 0, "max_running_bytes": 150_000}}
    async with replicas(store_address, small, n=1) as (other,):
        body = {"messages": [{"role": "user", "content": words}]}
        async with replicas(store_address, settings(HALTING), n=1) as (one,):
            ids = [(await one.api.post(body, background=True)).json()["id"] for _ in range(3)]
            for id in ids:
                await until_it_halts(one, id)
            await one.api.service.aclose()
            await one.store.aclose()
        sessions = other.api.service.sessions
        for id in ids:
            for n_taken in (1, 0, 0, 0):  # more attempts than a run that stops its replicas gets
                assert await other.records.take_over() == n_taken
            await until(partial(sessions.find, id))
            await sessions.cancel(id)
            await other.api.quiet()
            await until(lambda: not other.records.n_unwritten)
        assert await other.rows("SELECT DISTINCT takes, status FROM run") == [(1, "cancelled")]


async def test_a_run_that_ends_after_the_query_for_orphans_is_not_taken_over(store_address: Address) -> None:
    async with replicas(store_address, settings(WORDS), n=1) as (one,):
        id = (await one.api.post(background=True)).json()["id"]
        record = await until_ended(one.api, id)
        await until(lambda: not one.records.n_unwritten)
        assert not await one.records._take_orphan(id)
        assert await until_ended(one.api, id) == record


async def test_an_unreadable_run_is_given_up_and_blocks_no_other(
    store_address: Address,
) -> None:
    async with replicas(store_address, settings(WORDS), n=1) as (other,):
        async with replicas(store_address, settings(HALTING), n=1) as (one,):
            ids = [(await one.api.post(background=True)).json()["id"] for _ in range(2)]
            for id in ids:
                await until_it_halts(one, id)
            await one.api.service.aclose()
            await one.store.aclose()
        await other.change("UPDATE run_event SET body = :body WHERE run_id = :id", body=b"damaged", id=ids[0])
        assert await other.records.take_over() == 1
        assert (await until_ended(other.api, ids[1]))["answer"] == WORDS
        for _ in range(2):
            assert await other.records.take_over() == 0
        assert await other.records.sweep() == 1
        assert await other.rows("SELECT status FROM run WHERE id = :id", id=ids[0]) == [("lost",)]
