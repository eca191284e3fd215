"""Pools: routes of workers, prices, members, and clients to close when a pool is replaced."""

import asyncio
import json
from decimal import Decimal
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.usage import FREE, Price
from conductor.run.call_bound import with_defaults
from serving.accounts.caller import ANONYMOUS
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.resolve import resolve
from serving.dispatch.dispatcher import Dispatcher
from serving.dispatch.limiter import AdaptiveLimiter, Limiter
from serving.dispatch.route import Route
from serving.pool import Pool, build_pool
from serving.sessions.service import Service
from serving.sessions.session import RunSpec
from serving.settings.model_access import USUAL_KEYS
from serving.settings.settings import SettingsError, parse
from serving.workers.scripted import ScriptedWorker
from tests.serving.api.served import scripted, served, step, team
from tests.serving.spans import SPANS
from tests.serving.workers.subjects import Behaviour, ScriptedEngine
from tests.states import until

KEYS = dict.fromkeys(USUAL_KEYS.values(), "sk-test")
CALL = Call((Message.of("user", "hi"),))
CHEAP, DEAR = ({"input_usd_per_mtok": i, "output_usd_per_mtok": o} for i, o in [(1, 9), (5, 2)])


def pool(*workers: dict[str, Any], environment: dict[str, str] | None = None, **more: Any) -> Pool:
    named = [{"name": chr(ord("a") + n), "kind": "scripted"} | worker for n, worker in enumerate(workers)]
    return build_pool(parse({"workers": named} | more), environment or KEYS, engines={})


def wire(of: Pool, name: str) -> ScriptedWorker:
    client = next(each for each in of.clients if each.name == name)
    assert isinstance(client, ScriptedWorker)
    return client


def routes(of: Pool, name: str) -> tuple[Route, ...]:
    """Return the routes of a worker and of its fallbacks."""
    sends = of.members[name].worker
    assert isinstance(sends, Dispatcher)
    return sends._routes


def test_each_worker_gets_supported_parameters_and_fallbacks_share_their_routes():
    both = pool({"kind": "openai", "model": "gpt-5", "fallbacks": ["b"]}, {})
    first, second = routes(both, "a")
    assert routes(both, "b") == (second,), "nothing to fall back to"
    assert first.profile.accepts is not None
    assert second.profile.accepts is None
    assert (first.limiter, first.health) == (both.limiters["a"], both.health["a"])


def test_the_public_name_of_a_model_determines_what_its_provider_caches():
    (route,) = routes(pool({"kind": "openai", "model": "team-large", "like": "gpt-5"}), "a")
    assert route.profile.model == "gpt-5"


def test_adaptive_slots_and_hedging_follow_the_settings():
    (learned,) = routes(pool({}), "a")
    assert isinstance(learned.limiter, AdaptiveLimiter)
    assert learned.hedge_budget is None
    (fixed,) = routes(pool({"adaptive_concurrency": False, "hedge": True}), "a")
    assert type(fixed.limiter) is Limiter
    assert fixed.hedge_budget is not None


@pytest.mark.parametrize(
    ("worker", "own", "tokens"),
    [
        ({"model": "gpt-5"}, {}, 8192),
        ({"model": "gpt-5", "effort": "low"}, {}, 4096),
        ({"model": "gpt-5", "effort": "none"}, {}, 1024),
        ({"model": "gpt-4o"}, {}, 0),
        ({"model": "team-large", "like": "gpt-5"}, {}, 8192),
        ({"model": "qwen3-thinking"}, {}, 0),
        ({"model": "qwen3-thinking"}, {"max_thinking_tokens": 2000}, 2000),
        ({"model": "gpt-5"}, {"max_thinking_tokens": 0}, 0),
        ({"model": "gpt-4o", "fallbacks": ["c"]}, {}, 16_384),
        ({"kind": "scripted"}, {}, 0),
    ],
)
def test_a_reasoning_conductor_has_tokens_for_reasoning_and_its_plan(
    worker: dict[str, Any], own: dict[str, Any], tokens: int
):
    claude = {"kind": "anthropic", "model": "claude-sonnet-5-5"}
    led = pool({"kind": "openai"} | worker, {}, claude, conductor={"worker": "a"} | own)
    assert led.team.conductor is not None
    assert led.team.conductor.max_thinking_tokens == tokens


async def test_a_fallback_uses_its_own_retry_rules_and_slots():
    down = {"replies": [{"error": "unavailable"}]}
    line = pool(
        down | {"retry": {"attempts": 1}, "fallbacks": ["b"]},
        {
            "replies": [{"error": "unavailable"}, "B."],
            "retry": {"attempts": 2, "first_wait_s": 0.001},
            "max_concurrency": 1,
        },
    )
    async with line.members["a"].worker.open(CALL) as reply:
        assert (reply.worker, [a.worker for a in reply.attempts]) == ("b", ["a", "b"])
        waiting = asyncio.create_task(line.members["b"].worker.open(CALL).__aenter__())
        await asyncio.sleep(0)
        assert wire(line, "b").open_calls == 1, "one slot, whoever asks"
    await waiting
    assert len(wire(line, "a").calls) == 1


async def test_every_attempt_has_its_own_span():
    SPANS.clear()
    one = pool({"replies": [{"error": "unavailable"}, "A."], "retry": {"first_wait_s": 0.001}})
    async with one.members["a"].worker.open(CALL):
        pass
    spans = SPANS.named("chat a")
    assert [(s.attributes or {})["podium.attempt"] for s in spans] == [1, 2]
    assert [(s.attributes or {}).get("error.type") for s in spans] == ["WorkerUnavailable", None]


def test_local_machines_and_scripts_are_free_and_other_prices_unknown():
    own = pool({}, {"price": CHEAP}, {"name": "gpt", "kind": "openai", "model": "m"})
    assert own.members["a"].price == FREE
    assert own.members["b"].price == Price(Decimal(1), Decimal(9))
    assert own.members["gpt"].price is None
    assert own.members["gpt"].worst_price is None


def test_the_worst_price_is_the_highest_of_worker_and_fallbacks():
    both = pool({"price": CHEAP, "fallbacks": ["b"]}, {"price": DEAR})
    assert both.members["a"].price == Price(Decimal(1), Decimal(9))
    assert both.members["a"].worst_price == Price(Decimal(5), Decimal(9))
    assert both.members["b"].worst_price == Price(Decimal(5), Decimal(2))


def test_workers_that_a_plan_tries_first_count_only_in_plans():
    program = {"kind": "python", "factory": "serving.workers.programs.calculator:Calculator"}
    own = pool({"try_first": ["b"]}, {"price": DEAR}, {"try_first": ["d"]}, program)
    a, c = own.members["a"], own.members["c"]
    assert (a.worst_price, a.for_conductor.worst_price) == (FREE, Price(Decimal(5), Decimal(2)))
    assert c.for_conductor.worst_price is None, "a program's price is unknown until it is set"
    assert a.for_conductor.takes == a.takes == c.takes
    assert c.for_conductor.takes == {"token_prompt"} < c.takes, (
        "no call with token ids reaches another worker"
    )


async def test_a_plan_whose_first_tried_worker_could_exceed_the_budget_is_rejected():
    workers = [scripted("a", try_first=["paid"]), scripted("paid", price=DEAR, in_pool=False)]
    async with served(team(json.dumps(step("a", "")), workers=workers, workflows={})) as api:
        plan = await api.ok(path="/v1/plans")
        assert plan["worst_case_cost_usd"] > 0
        refused = await api.post(max_cost_usd=1e-9)
        assert (refused.status_code, refused.json()["error"]["code"]) == (402, "budget_exceeded")
        assert (await api.post(max_cost_usd=1e-9, workers=["a"])).status_code == 200


def test_the_worst_price_has_a_cached_price_only_if_all_workers_have_one():
    cached = pool(
        {"price": CHEAP | {"cached_input_usd_per_mtok": "0.1"}, "fallbacks": ["b"]},
        {"price": DEAR | {"cached_input_usd_per_mtok": "0.5"}},
    )
    mixed = pool({"price": CHEAP | {"cached_input_usd_per_mtok": "0.1"}, "fallbacks": ["b"]}, {"price": DEAR})
    assert cached.members["a"].worst_price == Price(Decimal(5), Decimal(9), Decimal("0.5"))
    assert mixed.members["a"].worst_price == Price(Decimal(5), Decimal(9), None)


def test_the_worst_price_is_unknown_as_soon_as_one_is():
    assert (
        pool({"fallbacks": ["gpt"]}, {"name": "gpt", "kind": "openai", "model": "m"}).members["a"].worst_price
        is None
    )


def test_a_member_has_the_values_of_the_settings():
    facts = {
        "card": "Fast.",
        "max_output_tokens": 9,
        "sees_images": True,
        "system_prompt": "Be kind.",
        "temperature": 0.5,
        "top_p": 0.9,
    }
    member = pool(facts | {"effort": "low"}).members["a"]
    assert (member.card, member.max_output_tokens, member.sees_images, member.system_prompt) == (
        "Fast.",
        9,
        True,
        "Be kind.",
    )
    call = Call(CALL.messages, with_defaults(member, CALL.sampling))
    assert (
        call.sampling.temperature,
        call.sampling.top_p,
        call.sampling.effort,
        call.sampling.max_output_tokens,
    ) == (0.5, 0.9, "low", 9)


def test_plans_use_the_pool_and_plans_in_requests_every_worker():
    own = pool({"in_pool": False}, {}, conductor={"worker": "a"}, prompts={"conductor": "Lead."})
    assert list(own.team.pool) == ["b"]
    assert list(own.whole_pool_team.pool) == ["a", "b"]
    assert own.team.conductor is not None
    assert (own.team.conductor.member.name, own.team.prompts.conductor) == ("a", "Lead.")


def test_an_optional_worker_without_its_key_is_disabled_with_a_warning(caplog: pytest.LogCaptureFixture):
    gpt = {"name": "gpt", "kind": "openai", "model": "m", "api_key_env": "MY_KEY"}
    own = pool({"fallbacks": ["gpt"]}, gpt | {"optional": True})
    assert list(own.members) == ["a"]
    assert own.settings.pool == ["a"]
    assert "gpt is disabled, because its API key is missing in MY_KEY" in caplog.text
    with pytest.raises(SettingsError, match="MY_KEY"):
        pool({}, gpt)
    assert list(pool({}, gpt, environment={"MY_KEY": "sk-1"}).members) == ["a", "gpt"]


class Closable(ScriptedWorker):
    closed = False

    async def aclose(self) -> None:
        self.closed = True


def closable(*replies: Any) -> tuple[Pool, Closable]:
    from dataclasses import replace

    from conductor.model.worker import PoolMember

    own_pool, worker = pool({}), Closable("a", replies or ["x"])
    return replace(own_pool, members={"a": PoolMember("a", worker)}, clients=(worker,)), worker


def ordered(of: Pool) -> Any:
    return resolve(
        ChatDialect().parse(b'{"model": "a", "messages": [{"role": "user", "content": "hi"}]}'), of
    )


async def test_an_unused_pool_is_closed_when_it_is_replaced():
    (old, worker), (new, fresh) = closable(), closable()
    service = Service(old)
    await service.swap(new)
    assert (service.pool, worker.closed, fresh.closed) == (new, True, False)


async def test_current_runs_keep_the_old_pool_until_they_end():
    from serving.workers.scripted import ScriptedReply

    old, worker = closable(ScriptedReply("x y", stall_after_tokens=1))
    new, fresh = closable("new")
    service = Service(old)

    async def run() -> None:
        one = ordered(service.pool)
        spec = RunSpec(f"wf_{len(worker.calls)}{service.running}", one.task, one.team, one.pool)
        async with service.sessions.start(spec, ANONYMOUS) as session:
            async for _ in session.run.events():
                pass

    first, second = asyncio.create_task(run()), asyncio.create_task(run())
    await until(lambda: worker.open_calls == 2)
    await service.swap(new)
    assert not worker.closed
    await run()
    assert (len(fresh.calls), worker.closed) == (1, False)
    first.cancel()
    await asyncio.wait([first])
    assert not worker.closed, "one is still at it"
    second.cancel()
    await asyncio.wait([second])
    assert (worker.closed, fresh.closed, worker.open_calls) == (True, False, 0)


async def test_two_consecutive_reloads_close_both_old_pools():
    pools = [closable() for _ in range(3)]
    service = Service(pools[0][0])
    for old_pool, _ in pools[1:]:
        await service.swap(old_pool)
    assert [worker.closed for _, worker in pools] == [True, True, False]


async def test_calls_of_a_replaced_pool_count_and_removed_workers_gauges_are_reset():
    from serving.telemetry.metrics import OPEN

    old, new = pool({"replies": [{"text": "x y", "stall_after_tokens": 1}]}), pool({"name": "b"})
    service = Service(old)

    def open_calls() -> dict[str, float]:
        return {m.labels[0]: m.value for m in service.levels() if m.instrument is OPEN}

    async def run() -> None:
        one = ordered(old)
        async with service.sessions.start(
            RunSpec("wf_1", one.task, one.team, one.pool), ANONYMOUS
        ) as session:
            async for _ in session.run.events():
                pass

    running = asyncio.create_task(run())
    await until(lambda: wire(old, "a").open_calls == 1)
    assert open_calls() == {"a": 1}
    await service.swap(new)
    assert (service.calls, open_calls()) == (1, {"a": 1, "b": 0})
    running.cancel()
    await asyncio.wait([running])
    assert (service.calls, open_calls()) == (0, {"a": 0, "b": 0})


async def test_an_adapter_is_in_the_record_and_loaded_in_the_shared_engine():
    engine = ScriptedEngine(Behaviour(text="Yes."))
    workers = [
        {"name": "v", "kind": "vllm", "model": "models/m"},
        {"name": "w", "kind": "vllm", "deployment": "v", "adapter": "s3://b/conductor@1a2b3c4d"},
    ]
    both = build_pool(parse({"workers": workers}), KEYS, {"v": engine})
    assert both.models == {"v": "models/m", "w": "models/m+conductor@1a2b3c4d"}
    for name, adapter in (("v", None), ("w", "s3://b/conductor@1a2b3c4d")):
        async with both.members[name].worker.open(CALL) as reply:
            assert [delta.text async for delta in reply if delta.text]
        assert reply.model == both.models[name]
        assert engine.calls[-1].adapter == adapter
    await both.load_adapters()
    assert engine.loaded == ["s3://b/conductor@1a2b3c4d"]
    assert await both.engines_not_ready() == []
    assert engine.ready_with == ["s3://b/conductor@1a2b3c4d"]


def test_a_pool_marks_workers_that_are_not_models():
    api = {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"}
    own = {"kind": "python", "factory": "evaluation.workers.majority:Majority"}
    engine = {"kind": "vllm", "model": "m"}
    fake = {"kind": "vllm", "model": "m", "stand_in": {}}
    workers = [{}, api, own, engine, fake, {"kind": "vllm", "deployment": "e"}]
    named = [{"name": chr(ord("a") + n), "kind": "scripted"} | worker for n, worker in enumerate(workers)]
    engines = {name: ScriptedEngine(Behaviour()) for name in ("d", "e")}
    mixed = build_pool(parse({"workers": named}), KEYS, engines)
    assert mixed.provenance == {"a": "scripted", "c": "program", "e": "scripted", "f": "scripted"}


@pytest.mark.parametrize(
    ("boss", "conductor", "layout"),
    [
        ({"kind": "vllm", "model": "m"}, {}, "lines"),
        ({"kind": "openai", "model": "m"}, {}, "thinking object"),
        ({"kind": "openai", "model": "gpt-5"}, {}, "object"),
        (
            {"kind": "openai", "model": "m", "base_url": "http://127.0.0.1:1/v1"},
            {"thought": False},
            "object",
        ),
        ({"kind": "anthropic", "model": "claude-sonnet-4-5"}, {}, "thinking object"),
        ({"kind": "anthropic", "model": "claude-3-7-sonnet-latest"}, {}, "lines"),
        ({"kind": "gemini", "model": "m"}, {"constrained": False}, "lines"),
        ({"kind": "gemini", "model": "m"}, {"format": "lists"}, "lists"),
        ({"kind": "scripted"}, {}, "lines"),
    ],
)
def test_the_conductors_format_is_the_one_that_its_server_enforces(
    boss: dict[str, Any], conductor: dict[str, Any], layout: str
) -> None:
    workers = [{"name": "boss", "in_pool": False, **boss}, {"name": "a", "kind": "scripted"}]
    settings = parse({"workers": workers, "conductor": {"worker": "boss", **conductor}})
    engine = build_pool(settings, KEYS, {"boss": ScriptedEngine(Behaviour())}).team
    assert engine.conductor is not None
    assert engine.conductor.layout == layout


def test_the_thinking_field_is_used_only_with_the_built_in_prompts():
    workers = [
        {"name": "boss", "in_pool": False, "kind": "openai", "model": "m"},
        {"name": "a", "kind": "scripted"},
    ]
    for thought, layout in ((None, "object"), (True, "thinking object")):
        conductor = {"worker": "boss", "thought": thought}
        settings = parse({"workers": workers, "conductor": conductor, "prompts": {"steps": "As you like."}})
        engine = build_pool(settings, KEYS, {}).team
        assert engine.conductor is not None
        assert engine.conductor.layout == layout


def test_members_have_context_and_speed_and_the_conductors_prompt_states_them():
    engine = {"engine": {"max_model_len": 4096}}
    workers = [
        {"name": "own", "kind": "vllm", "model": "m", **engine},
        {"name": "shared", "kind": "vllm", "deployment": "own"},
        {"name": "said", "kind": "vllm", "model": "m", "context_tokens": 99, **engine},
        {"name": "auto", "kind": "vllm", "model": "m", "engine": {"max_model_len": -1}},
        {"name": "api", "kind": "openai", "model": "m", "context_tokens": 400_000, "tokens_per_s": 80, "sees_images": True},
    ]  # fmt: skip
    wide = build_pool(
        parse({"workers": workers}), KEYS, dict.fromkeys(("own", "said", "auto"), ScriptedEngine(Behaviour()))
    )
    assert [member.context_tokens for member in wide.members.values()] == [4096, 4096, 99, None, 400_000]
    prompt = wide.team.prompts.plan("lines", list(wide.members.values()), 5, CALL.messages)[0].text
    assert (
        "4: a general language model\n   (m; 80 tokens/s; context of 400,000 tokens; sees images)" in prompt
    )
