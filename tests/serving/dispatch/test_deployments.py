"""A worker with several deployments, over sockets: choice, failover and records."""

import asyncio
import dataclasses
import time
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager

import openai
import pytest

from conductor.model.call import Call, Sampling
from conductor.model.messages import File, Image, Message, Text
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.terms import ANY_TERMS, Terms
from conductor.run.call_bound import PDF_TOKENS
from serving.dispatch.call_budgets import TokenBucket
from serving.dispatch.target import BUSY_SKIP_S, Target
from serving.fairness import unit_hash
from serving.health import FAILURES_BEFORE_OPEN
from serving.settings.keys import absent_workers, without_workers
from serving.settings.settings import SettingsError, parse
from serving.workers.scripted import ScriptedWorker
from tests.serving.api.served import PRICE, Json, Served, served
from tests.serving.dispatch import routes
from tests.states import until
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving

KEYS = {"KEY_A": "key-of-a", "KEY_B": "key-of-b", "KEY_C": "key-of-c"}
BROKEN = Answer(status=500)


@asynccontextmanager
async def deployed(
    *more: Json, retry: Json | None = None, **worker: object
) -> AsyncGenerator[tuple[Served, dict[str, WireServer]]]:
    """Serve a worker `gpt` with a deployment for each of `more`, named a, b and c, each on its own server."""
    async with AsyncExitStack() as stack:
        wires = {
            name: await stack.enter_async_context(serving(OpenAIWire()))
            for name, _ in zip("abc", more, strict=False)
        }
        places = [
            {"name": name, "base_url": f"{wires[name].url}/v1", "api_key_env": f"KEY_{name.upper()}"} | each
            for name, each in zip(wires, more, strict=True)
        ]
        gpt = {
            "name": "gpt",
            "kind": "openai",
            "model": "gpt-5",
            "price": PRICE,
            "retry": retry or {"attempts": 1},
        }
        running = await stack.enter_async_context(
            served({"workers": [gpt | worker | {"deployments": places}]}, KEYS)
        )
        stack.push_async_callback(running.service.pool.aclose)
        yield running, wires


async def ask(running: Served, sdk: openai.AsyncOpenAI, words: str = "Why?") -> Json:
    completion = await sdk.chat.completions.create(model="gpt", messages=[{"role": "user", "content": words}])
    assert completion.choices[0].message.content == "It is four."
    return await running.record(completion.model_dump()["podium"]["workflow_id"])


async def test_calls_are_distributed_by_weight_with_each_deployments_key_and_model() -> None:
    async with deployed({"weight": 3}, {"model": "gpt-5-in-b"}) as (running, wires), running.sdk as sdk:
        for _ in range(10):
            await asyncio.gather(*(ask(running, sdk) for _ in range(20)))
        n_a, n_b = len(wires["a"].requests), len(wires["b"].requests)
        assert n_a + n_b == 200
        assert 118 < n_a < 182, "3 of 4 on average"
        counts = {
            name: Counter((r.headers["authorization"], r.body["model"]) for r in wire.requests)
            for name, wire in wires.items()
        }
        assert counts == {
            "a": Counter({("Bearer key-of-a", "gpt-5"): n_a}),
            "b": Counter({("Bearer key-of-b", "gpt-5-in-b"): n_b}),
        }


async def test_another_deployment_replaces_a_failing_one_which_is_then_skipped() -> None:
    async with deployed({"weight": 1000}, {}) as (running, wires), running.sdk as sdk:
        wires["a"].respond = lambda _: BROKEN
        records = [await ask(running, sdk) for _ in range(20)]
        (step,) = records[0]["steps"]
        assert (step["served_by"], step["deployment"]) == ("gpt", "b")
        assert [(each["worker"], each["deployment"], each["error"]) for each in step["attempts"]] == [
            ("gpt", "a", "WorkerUnavailable")
        ]
        assert len(wires["b"].requests) == 20
        assert 1 <= len(wires["a"].requests) <= 3, "after three failures in a row it rests"
        assert {each["cost_usd"] for each in records} == {records[0]["cost_usd"]}, (
            "a failed call costs nothing"
        )


async def test_a_busy_deployment_is_skipped_for_its_retry_after() -> None:
    async with deployed({"weight": 1000}, {}) as (running, wires), running.sdk as sdk:
        wires["a"].respond = lambda _: Answer(status=429, headers={"retry-after": "60"})
        for _ in range(10):
            await ask(running, sdk)
        assert (len(wires["a"].requests), len(wires["b"].requests)) == (1, 10)


async def test_a_rejected_prompt_is_sent_to_no_other_deployment() -> None:
    async with deployed({}, {}) as (running, wires), running.sdk as sdk:
        for wire in wires.values():
            wire.respond = lambda _: Answer(status=400, error="flagged by the content policy")
        with pytest.raises(openai.APIStatusError):
            await ask(running, sdk)
        assert sum(len(wire.requests) for wire in wires.values()) == 1


async def test_after_a_rejected_key_the_next_deployment_answers() -> None:
    async with deployed({"weight": 1000}, {}) as (running, wires), running.sdk as sdk:
        wires["a"].respond = lambda _: Answer(status=401, error="no such key")
        for _ in range(5):
            await ask(running, sdk)
        assert (len(wires["a"].requests), len(wires["b"].requests)) == (1, 5)


async def test_a_deployment_gets_at_most_its_requests_per_minute() -> None:
    async with (
        deployed({"weight": 1000, "requests_per_minute": 20}, {}) as (running, wires),
        running.sdk as sdk,
    ):
        await asyncio.gather(*(ask(running, sdk) for _ in range(30)))
        assert 2 <= len(wires["a"].requests) <= 6, "two at once, and one more each three seconds"
        assert len(wires["a"].requests) + len(wires["b"].requests) == 30


async def test_if_all_token_rates_are_used_callers_get_retry_after() -> None:
    async with deployed({"tokens_per_minute": 600}) as (running, wires), running.sdk as sdk:
        wires["a"].respond = lambda _: Answer(input_tokens=300, output_tokens=20)
        await ask(running, sdk)
        with pytest.raises(openai.InternalServerError, match="busy") as caught:
            await ask(running, sdk)
        assert 20 < float(caught.value.response.headers["retry-after"]) <= 30, (
            "320 tokens, of which 60 were there, at 10 a second"
        )
        assert len(wires["a"].requests) == 1


async def test_a_full_deployment_is_called_after_one_with_a_free_slot() -> None:
    async with deployed({"weight": 1000, "max_concurrency": 1}, {}) as (running, wires), running.sdk as sdk:
        wires["a"].answers.append(Answer(stall_after=2))
        stalled = asyncio.create_task(ask(running, sdk))
        while not wires["a"].requests:
            await asyncio.sleep(0.01)
        await asyncio.gather(*(ask(running, sdk) for _ in range(10)))
        assert (len(wires["a"].requests), len(wires["b"].requests)) == (1, 10)
        stalled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await stalled


async def test_admission_uses_the_capacity_of_all_deployments() -> None:
    one: Json = {"max_concurrency": 1}
    async with deployed(one, one, max_wait_s=0.5) as (running, wires), running.sdk as sdk:
        for wire in wires.values():
            wire.answers.append(Answer(stall_after=2))
        stalled = [asyncio.create_task(ask(running, sdk)) for _ in wires]
        limiter = running.service.pool.limiters["gpt"]
        await until(lambda: limiter.open_calls == 2)
        assert (limiter.is_full, limiter.n_slots) == (True, 2)
        began_s = time.monotonic()
        with pytest.raises(openai.RateLimitError, match="queue of gpt is too long"):
            await ask(running, sdk)
        assert time.monotonic() - began_s < 1
        assert [len(wire.requests) for wire in wires.values()] == [1, 1]
        for each in stalled:
            each.cancel()
        await asyncio.wait(stalled)
        wires["a"].respond = lambda _: Answer(status=429, headers={"retry-after": "60"})
        while len(wires["a"].requests) < 2:
            await ask(running, sdk)
        assert limiter.n_slots == 1, "who rests takes none"
        for each in running.service.pool.limiters["gpt"]._deployments:  # type: ignore[attr-defined]
            each.health.skip_until_s = min(each.health.skip_until_s, time.monotonic() + 0.2)
        await ask(running, sdk)
        await until(lambda: limiter.n_slots == 2, "without one more call")


async def test_the_cost_uses_the_price_of_the_deployment_that_answered() -> None:
    dear = {"input_usd_per_mtok": 100, "output_usd_per_mtok": 100}
    async with deployed({}, {"price": dear}) as (running, wires), running.sdk as sdk:
        wires["a"].respond = lambda _: BROKEN
        record = await ask(running, sdk)
        assert record["cost_usd"] == pytest.approx((12 + 7) * 100 / 1e6)


async def test_the_next_deployment_is_called_only_with_the_remaining_budget() -> None:
    async with deployed({"weight": 1e6}, {}, stall_timeout_s=15) as (running, wires):
        wires["a"].respond = lambda _: Answer(stall_after=1)
        answer = await running.post({"model": "gpt"}, max_cost_usd=0.001)
        assert answer.status_code == 402, answer.text
        assert (len(wires["a"].requests), len(wires["b"].requests)) == (1, 0)
        record = await running.record(answer.headers["x-podium-workflow-id"])
        assert (record["cost_is_bound"], record["cost_usd"] > 0) == (True, True)


def settings(*places: Json, **worker: object) -> Json:
    return {"workers": [{"name": "w", "kind": "openai", "model": "m", **worker, "deployments": list(places)}]}


def test_a_workers_key_is_sent_to_no_other_server() -> None:
    elsewhere = {"name": "b", "base_url": "https://other.example/v1"}
    (worker,) = parse(settings({"name": "a"}, elsewhere, api_key_env="KEY_A")).workers
    assert [worker.at(each).api_key_env for each in worker.deployments] == ["KEY_A", None]  # type: ignore[union-attr]


def test_an_optional_deployment_without_its_key_is_absent() -> None:
    places = [{"name": "a", "api_key_env": "KEY_A"}, {"name": "b", "api_key_env": "KEY_B"}]
    three_workers = parse(
        settings(*places, optional=True)
        | {"workers": [*settings(*places, optional=True)["workers"], {"name": "s", "kind": "scripted"}]}
    )
    absent = absent_workers(three_workers, {"KEY_B": "k"})
    assert absent == {"w@a": "KEY_A"}
    (worker, _) = without_workers(three_workers, set(absent)).workers
    assert [each.name for each in worker.deployments] == ["b"]  # type: ignore[union-attr]
    assert absent_workers(three_workers, {}) == {"w@a": "KEY_A", "w@b": "KEY_B", "w": "KEY_A, KEY_B"}
    with pytest.raises(SettingsError, match="KEY_A"):
        absent_workers(parse(settings(*places)), {"KEY_B": "k"})


@pytest.mark.parametrize(
    ("fault", "place"),
    [
        ("Two deployments are named 'a'", [{"name": "a"}, {"name": "a"}]),
        ("`api_version` is required", [{"name": "a", "service": "azure", "base_url": "https://x.example"}]),
        ("not available for kind 'openai'. Use azure", [{"name": "a", "service": "bedrock", "region": "r"}]),
        ("`project` must be set only for service vertex", [{"name": "a", "project": "p"}]),
    ],
)  # fmt: skip
def test_an_invalid_deployment_is_rejected_with_its_name(fault: str, place: list[Json]) -> None:
    with pytest.raises(SettingsError, match=fault):
        parse(settings(*place))


def test_a_token_bucket_fills_evenly_and_repays_its_debt() -> None:
    now_s = [0.0]
    rate = TokenBucket(600, lambda: now_s[0])
    rate.take(60)
    assert rate.wait_s == pytest.approx(0.1), "one more is there after a tenth of a second"
    now_s[0] = 0.1
    assert rate.wait_s == pytest.approx(0)
    rate.take(101)
    assert rate.wait_s == pytest.approx(10.1)
    rate.take(-1000)
    assert rate.wait_s == 0
    now_s[0] = 1000.0
    rate.take(60)
    assert rate.wait_s == pytest.approx(0.1), "no more than a tenth of a minute's is there at once"


async def test_a_pdfs_estimated_tokens_count_towards_the_rate() -> None:
    read = Call((Message("user", (File("a.pdf", "data:application/pdf;base64,AAAA"),)),))
    place = routes.target(ScriptedWorker("w", ["x"]), "a")
    place.tokens = TokenBucket(600, lambda: 0.0)
    async with routes.dispatcher(routes.deployed(place)).open(read):
        assert place.tokens.wait_s > (PDF_TOKENS - 60) / 10, "60 tokens were there, at 10 a second"


async def test_a_rate_limit_of_this_router_does_not_open_the_circuit() -> None:
    async with deployed({"requests_per_minute": 1}) as (running, wires), running.sdk as sdk:
        await ask(running, sdk)
        for n in range(2 * FAILURES_BEFORE_OPEN):
            with pytest.raises(openai.InternalServerError, match="busy"):
                await ask(running, sdk, f"Why {n}?")
        health = running.service.pool.health["gpt"]
        assert (health.circuit, health.opening, len(wires["a"].requests)) == ("closed", None, 1)
        assert 0 < health.skip_s <= BUSY_SKIP_S, "others are free meanwhile, and it is not"
        health.skip_until_s = 0.0
        assert not running.service.pool.members["gpt"].is_free(), "nor is it once that rest is over"


CONVERSATIONS = [f"cv_{number}" for number in range(200)]


def targets(**weights: float) -> list[Target]:
    return [
        routes.target(ScriptedWorker("w", ["x"]), name, weight=weight) for name, weight in weights.items()
    ]


async def deployments_of(*places: Target) -> dict[str, str]:
    """Send a turn of each conversation, and return the deployments that answered."""
    worker, answered = routes.dispatcher(routes.deployed(*places)), dict[str, str]()
    for conversation in CONVERSATIONS:
        async with worker.open(call_in(conversation)) as reply:
            async for _ in reply:
                pass
        answered[conversation] = reply.deployment
    return answered


async def test_a_moved_conversation_stays_at_the_deployment_with_its_cache() -> None:
    places = targets(a=1, b=1, c=1)
    worker, before = routes.dispatcher(routes.deployed(*places)), await deployments_of(*places)
    home = next(name for name in ("a", "b", "c") if name != before["cv_1"])
    moved = call_in("cv_1", terms=Terms(home=("w", home)))

    async def answer_place(call: Call) -> str:
        async with worker.open(call) as reply:
            async for _ in reply:
                pass
        return reply.deployment

    assert await answer_place(moved) == home
    assert await answer_place(call_in("cv_1", terms=Terms(home=("other", home)))) == before["cv_1"]
    next(each for each in places if each.name == home).health.fail(skip_s=60)
    assert await answer_place(moved) == before["cv_1"]


def call_in(conversation: str, *messages: Message, is_named: bool = True, terms: Terms = ANY_TERMS) -> Call:
    """A call of a conversation."""
    cache = PromptCache(conversation=conversation, is_named=is_named)
    sampling = Sampling(options=WireOptions(prompt_cache=cache))
    return Call(messages or (Message.of("user", "Why?"),), sampling, terms=terms)


async def test_conversations_are_distributed_by_weight_equally_on_every_router() -> None:
    before = await deployments_of(*targets(a=3, b=1))
    assert 128 < Counter(before.values())["a"] < 172, "3 of 4 on average"
    assert await deployments_of(*targets(b=1, a=3)) == before, (
        "another router, and another order in the settings"
    )


async def test_only_conversations_of_a_failing_deployment_move_and_they_return() -> None:
    places = targets(a=1, b=1, c=1)
    before = await deployments_of(*places)
    places[1].health.fail(skip_s=60)
    meanwhile = await deployments_of(*places)
    stayed = [name for name in CONVERSATIONS if meanwhile[name] == before[name]]
    assert stayed == [name for name in CONVERSATIONS if before[name] != "b"]
    moved = Counter(meanwhile[name] for name in CONVERSATIONS if before[name] == "b")
    assert min(moved["a"], moved["c"]) > 15, "they are shared by the others"
    await asyncio.sleep(61)
    assert await deployments_of(*places) == before


async def test_a_new_deployment_takes_its_share_and_no_other_conversation_moves() -> None:
    before, after = await deployments_of(*targets(a=1, b=1)), await deployments_of(*targets(a=1, b=1, c=1))
    moved = [name for name in CONVERSATIONS if before[name] != after[name]]
    assert {after[name] for name in moved} == {"c"}
    assert 40 < len(moved) < 95, "a third on average"


LONG = Message.of("user", "word " * 900)
"""Between 1,024 tokens, from which most providers cache a prompt, and 2,048."""
FIRST: dict[str, tuple[Call, str, bool]] = {
    "named": (call_in("cv_1"), "gpt-5", True),
    "after an answer": (
        call_in(
            "cv_1",
            Message.of("user", "Why?"),
            Message.of("assistant", "So."),
            Message.of("user", "And now?"),
            is_named=False,
        ),
        "gpt-5",
        True,
    ),
    "long": (call_in("cv_1", LONG, is_named=False), "gpt-5", True),
    "too short for its provider's cache": (call_in("cv_1", LONG, is_named=False), "claude-haiku-4-5", False),
    "a picture": (
        call_in("cv_1", Message("user", (Text("?"), Image("data:image/png;base64,AAAA"))), is_named=False),
        "gpt-5",
        True,
    ),
    "short": (call_in("cv_1", is_named=False), "gpt-5", False),
}


@pytest.mark.parametrize(("call", "model", "stays"), FIRST.values(), ids=list(FIRST))
async def test_equal_first_requests_use_one_deployment_only_if_it_caches(
    call: Call, model: str, *, stays: bool
) -> None:
    route = routes.deployed(*targets(a=1, b=1))
    route.profile = dataclasses.replace(route.profile, model=model)
    worker, answered = routes.dispatcher(route), Counter[str]()
    for _ in range(60):
        async with worker.open(call) as reply:
            async for _ in reply:
                pass
        answered[reply.deployment] += 1
    assert sorted(answered.values()) == [60] if stays else min(answered["a"], answered["b"]) > 10


@pytest.mark.parametrize(("weight", "n_calls"), [(1, 14), (4, 24)])
async def test_a_conversation_stays_at_its_deployment_unless_that_is_overloaded(
    weight: int, n_calls: int
) -> None:
    weights = {"a": weight, "b": 1, "c": 1}
    worker, opened = routes.dispatcher(routes.deployed(*targets(**weights))), Counter[str]()
    answered = await deployments_of(*targets(**weights))
    call = call_in(next(name for name, deployment in answered.items() if deployment == "a"))
    async with AsyncExitStack() as stack:
        for _ in range(24):
            reply = await stack.enter_async_context(worker.open(call))
            opened[reply.deployment] += 1
    assert opened["a"] == n_calls
    async with worker.open(call) as reply:
        assert reply.deployment == "a", "it has room again"


def test_a_hash_is_uniformly_distributed_and_never_zero() -> None:
    numbers = [unit_hash(str(number)) for number in range(1000)]
    assert 0 < min(numbers) < 0.02
    assert 0.98 < max(numbers) <= 1
    assert 0.45 < sum(numbers) / 1000 < 0.55
    assert unit_hash("cv_1\0a") == unit_hash("cv_1\0a")
