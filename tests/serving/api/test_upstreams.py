"""The real API with providers that lie, break or stall. Other requests do not suffer, and nothing is left."""

import asyncio
import json
from contextlib import AsyncExitStack
from decimal import Decimal
from typing import Any

import pytest

from serving.api.record_json import dumps
from tests.serving.api.served import (
    ASK,
    PRICE,
    Json,
    Served,
    answer_text,
    plan,
    scripted,
    served,
    step,
    team,
)
from tests.serving.workers.test_http import PROVIDERS, Provider
from tests.states import until
from tests.wires.faults import BROKEN_FRAMING, COMMENTS, NOT_HTTP, SILENT, Fault, faulty
from tests.wires.server import Answer, serving

STALL_S = 0.5
ONCE = {"attempts": 1}


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


def remote(provider: Provider, url: str, **settings: Any) -> Json:
    kind = next(name for name, each in PROVIDERS.items() if each is provider)
    worker_settings = {
        "kind": kind,
        "model": "m",
        "base_url": url + provider.path,
        "stall_timeout_s": STALL_S,
        "retry": ONCE,
    }
    return {"name": "a", "price": PRICE, **worker_settings, **settings}


def only(worker: Json, *others: Json) -> Json:
    return team(workers=[worker, *others], workflows={})


def check_nothing_is_held(api: Served, name: str = "a") -> None:
    """Check that no slot or cent is held. `served` checks tasks, runs and spans."""
    slots = api.service.pool.limiters[name]
    assert (slots.open_calls, slots.queued) == (0, 0)
    assert [ledger.holds for ledger in api.ledgers if ledger.holds] == []


@pytest.mark.parametrize("tokens", [10**30, -(10**6)])
async def test_impossible_usage_breaks_neither_the_answer_nor_the_list_of_runs(
    provider: Provider, tokens: int
):
    async with serving(provider.wire) as upstream:
        upstream.answers.extend([Answer(output_tokens=tokens)] * 2)
        async with served(only(remote(provider, upstream.url))) as api:
            answer = await api.ok({"model": "a", "max_tokens": 100}, max_cost_usd=1, trace=True)
            events = await api.events({"model": "a", "max_tokens": 100})
            runs = await api.http.get("/v1/workflows")
            record = await api.record(answer["podium"]["workflow_id"])
    step_json = answer["podium"]["steps"][0]
    assert (answer_text(events), events[-1]) == ("It is four.", "[DONE]")
    assert (runs.status_code, len(runs.json()["data"])) == (200, 2)
    assert (record["steps"][0]["usage"], record["unmetered_calls"]) == (None, 1)
    assert 0.0002 < answer["podium"]["cost_usd"] < 0.001, (
        "the bound: a hundred tokens, and the prompt's bytes"
    )
    assert ["implausible" in note for note in step_json["notes"]] == [True]


async def test_values_that_json_cannot_represent_are_approximated():
    odd = {
        "tokens": 10**30,
        "text": "\ud800",
        "cost": Decimal(3),
        "list": (1, {2: float("nan")}),
        10**30: True,
    }
    value = json.loads(dumps({"ok": 1, "odd": odd}))
    assert value["ok"] == 1
    assert value["odd"] == {
        "tokens": "a number of 100 bits", "text": "\ufffd", "cost": "3", "list": [1, {"2": None}],
        "a number of 100 bits": True,
    }  # fmt: skip


async def test_a_lone_surrogate_in_an_answer_does_not_break_the_stream(provider: Provider):
    events = provider.wire.events(Answer(text="a b"))
    odd = tuple(event.replace(b'" b"', b'" \\ud800"') for event in events)
    async with serving(provider.wire) as upstream:
        upstream.answers.extend([Answer(instead=odd)] * 2)
        async with served(only(remote(provider, upstream.url))) as api:
            whole = await api.post({"model": "a"})
            events = await api.events({"model": "a"})
            assert (await api.http.get("/v1/workflows")).status_code == 200
    assert whole.status_code in (200, 400), "read as it stands, or refused as garbled"
    assert events[-1] == "[DONE]"


FAULTS: dict[str, Fault] = {
    **NOT_HTTP,
    **SILENT,
    **{f"{name}, at once": Fault(tail=tail) for name, tail in BROKEN_FRAMING.items()},
    **{f"{name}, at once": Fault(drips=drip) for name, drip in COMMENTS.items()},
}


async def test_every_fault_before_the_first_token_uses_the_fallback(provider: Provider):
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(faulty(fault)) for fault in FAULTS.values()]
        names = [f"w{number}" for number in range(len(servers))]
        workers = [
            remote(provider, server.url, name=name, fallbacks=["b"])
            for name, server in zip(names, servers, strict=True)
        ]
        api = await stack.enter_async_context(served(only(*workers, scripted("b", "Instead."))))

        async def play(name: str) -> tuple[int, str, str]:
            answer = await api.post({"model": name}, max_cost_usd=1)
            check_nothing_is_held(api, name)
            body = answer.json()
            return answer.status_code, body["model"], body["podium"]["steps"][0]["served_by"]

        results = {fault: await play(name) for fault, name in zip(FAULTS, names, strict=True)}
    assert results == dict.fromkeys(FAULTS, (200, "b", "b"))


async def test_hung_streams_release_their_slots_at_the_timeout(provider: Provider):
    """More streams than slots stall, then one more request is served."""
    words = b"".join(provider.wire.events(Answer(text="a b c"))[: provider.first_word + 1])
    async with (
        faulty(Fault(speaks=True, drips=COMMENTS["comments"]), words) as upstream,
        served(only(remote(provider, upstream.url, max_concurrency=4))) as api,
    ):
        upstream.heard.set()
        async with asyncio.timeout(60):
            answers = await asyncio.gather(*(api.post({"model": "a"}) for _ in range(6)))
        check_nothing_is_held(api)
    codes = {answer.status_code for answer in answers}
    assert codes <= {400, 502}, "words were read, or on a busy machine none before the timer ended"
    assert upstream.requests == 6


async def test_a_provider_that_fails_every_second_call_answers_every_client(provider: Provider):
    async with serving(provider.wire) as upstream:
        upstream.answers.extend([Answer(status=503), Answer()] * 10)
        again = {"attempts": 2, "first_wait_s": 0.001}
        async with served(only(remote(provider, upstream.url, retry=again))) as api:
            for _ in range(10):
                await api.ok({"model": "a"})
            check_nothing_is_held(api)
            assert api.service.pool.health["a"].circuit == "closed"
    assert len(upstream.requests) == 20, "ten retries are what it may owe, and each helped"


async def test_leaving_a_hung_call_releases_its_slot_immediately(provider: Provider):
    async with (
        faulty(Fault(drips=COMMENTS["comments"])) as upstream,
        served(only(remote(provider, upstream.url, stall_timeout_s=60))) as api,
    ):
        slots = api.service.pool.limiters["a"]
        body = ASK | {"model": "a", "stream": True}
        async with api.http.stream("POST", "/v1/chat/completions", json=body):
            await until(lambda: upstream.requests == 1, "it was asked")
            assert slots.open_calls == 1
        await until(lambda: slots.open_calls == 0, "the slot is free")
        await until(lambda: upstream.open_connections == 0, "the connection is closed")


@pytest.mark.parametrize("stream", [False, True])
async def test_after_a_failover_the_response_names_the_worker_that_answered(stream: bool):
    workers = [
        scripted("a", {"error": "unavailable"}, retry=ONCE, fallbacks=["b"]),
        scripted("b", "Instead."),
    ]
    async with served(team(plan(step("a")), workers=workers, workflows={})) as api:
        if stream:
            events = [each for each in await api.events({"model": "a"}) if isinstance(each, dict)]
            models = {each["model"] for each in events if each["choices"]}
            steps = events[-1]["podium"]["steps"]
            assert models <= {"a", "b"}
            assert events[-1]["model"] == "b"
        else:
            answer = await api.ok({"model": "a"})
            assert answer["model"] == "b"
            steps = answer["podium"]["steps"]
            assert (await api.ok())["model"] == "mini", "a conductor keeps the name that was asked for"
    assert [(each["worker"], each["served_by"], each["model"]) for each in steps] == [("a", "b", "scripted")]


async def test_a_deadline_below_retry_after_leaves_time_for_the_fallback():
    waits = {"attempts": 3, "max_wait_s": 60}
    busy = scripted("a", {"error": "busy", "retry_after_s": 30}, retry=waits)
    async with served(only(busy | {"fallbacks": ["b"]}, scripted("b", "Instead."))) as api:
        answer = await api.ok({"model": "a"}, deadline_s=10)
        assert answer["choices"][0]["message"]["content"] == "Instead."
        assert answer["podium"]["wall_s"] < 5
    async with served(only(busy)) as api:
        refusal = await api.post({"model": "a"}, deadline_s=10)
    assert (refusal.status_code, refusal.headers["retry-after"]) == (503, "30"), (
        "soon, and with when to come back"
    )


async def test_an_endless_plan_is_cut_off_and_a_worker_answers(provider: Provider):
    """The conductor's words arrive in time but never end, because its server ignores every limit."""
    words = b"".join(provider.wire.events(Answer(text="x"))[: provider.first_word + 1])
    drip = provider.wire.events(Answer(text="never "))[provider.first_word]
    framed = f"{len(drip):x}\r\n".encode() + drip + b"\r\n"
    async with faulty(Fault(speaks=True, drips=framed), words) as upstream:
        upstream.heard.set()
        leader = remote(provider, upstream.url, name="conductor", in_pool=False)
        settings = team(conductor={"worker": "conductor", "timeout_s": 0.5})
        settings["workers"][0] = leader
        async with served(settings) as api:
            answer = await api.ok(max_cost_usd=1)
            record = await api.record(answer["podium"]["workflow_id"])
    assert "not finish its plan in time" in answer["podium"]["fallback"]
    assert answer["choices"][0]["message"]["content"] == "A reason: scattering."
    assert record["plans"][0]["finish_reason"] == "length"
    assert any("cut off" in note for note in record["plans"][0]["notes"])
    assert 0 < record["plans"][0]["cost_usd"] < 0.1
