"""Follow-up turns through a conductor's model. The worker with the conversation in its cache keeps it."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.database.clock import now_us
from serving.dispatch.route import SharedLimiter
from serving.store.prompt_caches import PromptCacheRow, PromptCaches
from tests import pictures
from tests.databases import make_file
from tests.serving.api.served import Json, Served, plan, scripted, served, step, team
from tests.serving.api.test_prompt_cache import tool_call_events
from tests.serving.api.test_upstreams import remote
from tests.serving.store.stores import replicas
from tests.serving.workers.test_http import PROVIDERS
from tests.states import until
from tests.wires.server import Answer, serving

A = {"input_usd_per_mtok": 1.25, "cached_input_usd_per_mtok": 0.125, "output_usd_per_mtok": 10}
B = {"input_usd_per_mtok": 3, "cached_input_usd_per_mtok": 0.3, "cache_write_usd_per_mtok": 3.75, "output_usd_per_mtok": 15}  # fmt: skip
FREE = {"input_usd_per_mtok": 0, "output_usd_per_mtok": 0}
LONG = "A long document. " * 5_000
SHORT = "A short document. " * 150
"""About 700 tokens. No provider caches fewer than 1,024 tokens for these models."""
READ: Json = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
TO_A, TO_B = plan(step("a", "")), plan(step("b", ""))


def settings_for(*plans: Any, a: Json = A, b: Json = B, **more: Any) -> Json:
    workers = [scripted("a", "A says.", price=a), scripted("b", "B says.", price=b)]
    return team(*plans, workers=workers, workflows={}, **more)


def turns(*words: str) -> list[Json]:
    """Return a conversation with these questions, and answers between them."""
    messages: list[Json] = []
    for each in words:
        messages += [{"role": "assistant", "content": "A says."}] if messages else []
        messages.append({"role": "user", "content": each})
    return messages


async def run(api: Served, *words: str, **more: Any) -> Json:
    answer = await api.post({"messages": turns(*words), **more})
    assert answer.status_code == 200, answer.text
    return await api.record(answer.headers["x-podium-workflow-id"])


def sources(record: Json) -> list[str]:
    return [each["source"] for each in record["plans"]]


async def test_a_worker_with_a_valuable_cache_continues_without_a_plan() -> None:
    async with served(settings_for(TO_A, TO_B)) as api:
        assert sources(await run(api, LONG)) == ["conductor"]
        record = await run(api, LONG, "And now?")
        assert sources(record) == ["conversation"]
        assert "Reading this conversation again" in record["plans"][0]["why"]
        assert (await run(api, LONG, "And now?", "And then?"))["plans"][0]["source"] == "conversation"
        assert len(api.worker("conductor").calls) == 1
        assert len(api.worker("a").calls) == 3
        runs = (await api.http.get("/v1/workflows", params={"conversation": record["conversation"]})).json()
        assert len(runs["data"]) == 3


async def test_with_stickiness_zero_the_conductor_decides() -> None:
    settings = settings_for(TO_A, TO_B, conversation={"stickiness": 0, "speculation_usd_per_s": None})
    async with served(settings) as api:
        await run(api, LONG)
        record = await run(api, LONG, "And now?")
        assert sources(record) == ["conductor"]
        assert record["answer"] == "B says."


@pytest.mark.parametrize(("policy", "answer"), [({}, "B says."), ({"stickiness": 1}, "A says.")])
async def test_by_default_a_switch_must_gain_half_of_its_loss(policy: Json, answer: str) -> None:
    cheap = {"input_usd_per_mtok": 0.3, "output_usd_per_mtok": 10}
    settings = settings_for(TO_A, TO_B, b=cheap, conversation={"speculation_usd_per_s": None, **policy})
    async with served(settings) as api:
        await run(api, LONG)
        assert (await run(api, LONG, "And now?"))["answer"] == answer


async def test_a_worker_without_a_cache_price_has_nothing_to_lose() -> None:
    plain = {name: A[name] for name in ("input_usd_per_mtok", "output_usd_per_mtok")}
    settings = settings_for(TO_A, TO_B, a=plain, conversation={"speculation_usd_per_s": None})
    async with served(settings) as api:
        await run(api, LONG)
        record = await run(api, LONG, "And now?")
        prompt = api.worker("conductor").calls[-1].messages[-1].text
    assert (sources(record), record["answer"]) == (["conductor"], "B says.")
    assert "in its cache" not in prompt


async def test_a_prompt_too_short_for_a_cache_has_nothing_to_lose() -> None:
    settings = settings_for(TO_A, TO_B, conversation={"speculation_usd_per_s": None})
    async with served(settings) as api:
        await run(api, SHORT)
        record = await run(api, SHORT, "And now?")
        prompt = api.worker("conductor").calls[-1].messages[-1].text
    assert sources(record) == ["conductor"]
    assert "in its cache" not in prompt


async def test_text_next_to_tool_results_does_not_end_a_tool_loop() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "Rome"}
    messages = [
        {"role": "user", "content": LONG},
        {"role": "assistant", "content": "A says."},
        {"role": "user", "content": "Look it up."},
        {"role": "assistant", "content": [call]},
        {"role": "user", "content": [result, {"type": "text", "text": "Be brief."}]},
    ]
    tool = {"name": "look_up", "input_schema": {"type": "object"}}
    settings = settings_for(TO_A, TO_B, a=FREE, b=FREE, conversation={"stickiness": 0})
    async with served(settings) as api:
        await run(api, LONG)
        body = {"model": "mini", "max_tokens": 50, "messages": messages, "tools": [tool]}
        answer = await api.http.post("/v1/messages", json=body)
        assert answer.status_code == 200, answer.text
        record = await api.record(answer.headers["x-podium-workflow-id"])
    assert sources(record) == ["conversation"]


async def test_the_conductors_prompt_names_the_cache_and_a_profitable_switch_is_permitted() -> None:
    policy = {"stickiness": 0.3, "speculation_usd_per_s": None}
    settings = settings_for(TO_A, TO_B, a=B, b=A, conversation=policy)
    async with served(settings) as api:
        await run(api, LONG)
        record = await run(api, LONG, "And now?")
        prompt = api.worker("conductor").calls[-1].messages[-1].text
    assert "tokens of this conversation in its cache" in prompt
    assert record["answer"] == "B says."


async def test_the_conductors_prompt_names_the_cache_of_each_steps_worker() -> None:
    both = plan(step("a", "Find."), step("b", "Conclude.", [0]))
    policy = {"stickiness": 0, "speculation_usd_per_s": None}
    async with served(settings_for(both, TO_B, conversation=policy)) as api:
        await run(api, LONG)
        await run(api, LONG, "And now?")
        prompt = api.worker("conductor").calls[-1].messages[-1].text
    assert "Worker 1 gave the last answer." in prompt
    assert prompt.count("tokens of this conversation in its cache") == 2


async def test_an_early_call_that_the_plan_confirms_answers() -> None:
    async with served(settings_for(TO_A, a=FREE, b=FREE)) as api:
        await run(api, "Why?")
        record = await run(api, "Why?", "And now?")
        assert sources(record) == ["conductor", "conversation"]
        assert record["plans"][0]["accepted"]
        assert record["answer"] == "A says."
        await api.quiet()


@pytest.mark.parametrize(("slots", "early"), [(1, []), (2, ["conversation"])])
async def test_an_early_call_uses_at_most_half_of_the_worker_s_slots(slots: int, early: list[str]) -> None:
    settings = settings_for(TO_A, a=FREE, b=FREE)
    settings["workers"][1]["max_concurrency"] = slots
    async with served(settings) as api:
        await run(api, "Why?")
        assert sources(await run(api, "Why?", "And now?")) == ["conductor", *early]


@pytest.mark.parametrize("more", [{"service_tier": "flex"}, {"podium": {"background": True}}])
async def test_a_background_request_is_never_answered_early(more: Json) -> None:
    async with served(settings_for(TO_A, a=FREE, b=FREE)) as api:
        await run(api, "Why?")
        answer = await api.post({"messages": turns("Why?", "And now?"), **more})
        await until(lambda: not api.service.running)
        record = await api.record(answer.headers["x-podium-workflow-id"])
        assert (sources(record), record["answer"]) == (["conductor"], "A says.")


async def test_a_busy_worker_keeps_the_conversation_that_it_has_in_its_cache() -> None:
    settings = settings_for(TO_A, TO_B)
    stalled: Json = {"text": "Wait for it.", "stall_after_tokens": 1}
    settings["workers"][1] |= {"replies": ["A says.", stalled, "A says."], "max_concurrency": 1}
    async with served(settings) as api:
        await run(api, LONG)
        other = asyncio.create_task(api.post({"model": "a"}))
        slots = api.service.pool.limiters["a"]
        await until(lambda: slots.is_full)
        turn = asyncio.create_task(run(api, LONG, "And now?"))
        await until(lambda: slots.queued)
        other.cancel()
        assert sources(await turn) == ["conversation"]


async def test_requests_with_equal_beginnings_are_not_follow_ups_of_each_other() -> None:
    async with served(settings_for(TO_A, a=FREE, b=FREE)) as api:
        for question in ("And 2?", "And 3?"):
            assert sources(await run(api, "Is 1 odd?", question)) == ["conductor"]
        named: Json = {"podium": {"conversation": "numbers"}}
        assert sources(await run(api, "Is 1 odd?", "And 2?", **named)) == ["conductor"]
        assert "conversation" in sources(await run(api, "Is 1 odd?", "And 3?", **named))


async def test_an_early_call_that_the_plan_replaces_is_closed() -> None:
    async with served(settings_for(TO_A, TO_B, a=FREE, b=FREE)) as api:
        await run(api, "Why?")
        record = await run(api, "Why?", "And now?")
        assert sources(record) == ["conductor", "conversation", "conductor"]
        assert record["answer"] == "B says."
        assert sources(await run(api, "Why?", "And now?", "Then?"))[1] == "conversation"
        assert len(api.worker("b").calls) >= 2


async def test_a_changed_conversation_is_not_treated_as_cached() -> None:
    async with served(settings_for(TO_A, TO_B)) as api:
        await run(api, LONG, "And now?", "Then?")
        record = await run(api, LONG, "A summary.", "Go on.", "Please.")
        assert sources(record)[0] == "conductor"  # the tail has changed, and a switch costs nothing
        other = await run(api, LONG + "!", "And now?")
        assert sources(other) == ["conductor"]  # the head has changed, so this is a new conversation


def tool_turns(result: str, *more: Json) -> list[Json]:
    """A conversation with a call of a tool, whose result is `result`."""
    function = {"name": "read", "arguments": "{}"}
    call = {"role": "assistant", "tool_calls": [{"id": "t1", "type": "function", "function": function}]}
    return [{"role": "user", "content": LONG}, call, {"role": "tool", "tool_call_id": "t1", "content": result}, *more]  # fmt: skip


async def test_after_a_cleared_tool_result_a_switch_is_free() -> None:
    after = [*turns("Go on.")[:1], *turns("", "And now?")[1:]]
    for result, expected in (("Old.", "A says."), ("[cleared]", "B says.")):
        settings = settings_for(TO_A, TO_B, conversation={"speculation_usd_per_s": None})
        async with served(settings) as api:
            for messages in (tool_turns("Old.", *after[:1]), tool_turns(result, *after)):
                answer = await api.ok({"messages": messages, "tools": [READ]})
            assert answer["choices"][0]["message"]["content"] == expected
            prompts = [call.messages[-1].text for call in api.worker("conductor").calls]
        assert not any("in its cache" in prompt for prompt in prompts)


async def test_a_cleared_tool_result_does_not_end_a_tool_loop() -> None:
    call, result = tool_turns("New.")[1:]
    more = [*turns("Go on.", "?")[:2], *turns("And now?"), call | {"tool_calls": [call["tool_calls"][0] | {"id": "t2"}]}, result | {"tool_call_id": "t2"}]  # fmt: skip
    async with served(settings_for(TO_A, TO_B)) as api:
        await api.ok({"messages": tool_turns("Old.", *more[:3]), "tools": [READ]})
        answer = await api.post({"messages": tool_turns("[cleared]", *more), "tools": [READ]})
        record = await api.record(answer.headers["x-podium-workflow-id"])
    assert (sources(record), record["answer"]) == (["conversation"], "A says.")


@pytest.mark.parametrize("words", [LONG, "Now it is noon. " + LONG])
async def test_a_named_conversation_with_a_new_beginning_keeps_its_worker_in_a_tool_loop(
    words: str,
) -> None:
    call, result = tool_turns("New.")[1:]
    before = [{"role": "system", "content": "It is 11:59."}, *turns(LONG)]
    after = [{"role": "system", "content": "It is 12:00."}, *turns(words, "Look it up."), call, result]
    async with served(settings_for(TO_A, TO_B)) as api:
        for messages in (before, after):
            answer = await api.ok({"messages": messages, "tools": [READ]}, conversation="trip")
        assert answer["choices"][0]["message"]["content"] == "A says."
        assert sources(await api.newest()) == ["conversation"]


@pytest.mark.parametrize(("session", "answer"), [("s-1", "A says."), ("s-2", "B says.")])
async def test_the_agents_of_a_session_keep_their_own_workers(session: str, answer: str) -> None:
    """One agent's system prompt has a clock. Another agent's turn comes between its turns."""
    tool = {"name": "read", "input_schema": {"type": "object"}}
    call = {"type": "tool_use", "id": "toolu_1", "name": "read", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "X."}
    loop = [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    async with served(settings_for(TO_A, TO_B, TO_B)) as api:
        for clock, messages, id in (
            ("11:59", turns(LONG), "s-1"),
            ("11:59", turns("Search."), "s-1"),
            ("12:00", [*turns(LONG), *loop], session),
        ):
            named = {"metadata": {"user_id": json.dumps({"session_id": id})}}
            body: Json = {"model": "mini", "max_tokens": 500, "system": f"It is {clock}.", "tools": [tool]}
            await api.ok(body | {"messages": messages} | named, path="/v1/messages")
        assert (await api.newest())["answer"] == answer


@pytest.mark.parametrize(("result", "is_cached"), [("X.", True), ("[cleared]", False)])
async def test_a_tool_result_of_the_last_run_may_be_cleared(result: str, is_cached: bool) -> None:
    kind, name = PROVIDERS["anthropic"], "has 19,000 tokens of this conversation in its cache"
    body: Json = {
        "model": "mini",
        "max_tokens": 500,
        "tools": [{"name": "read", "input_schema": {"type": "object"}}],
    }
    messages: list[Json] = [{"role": "user", "content": LONG}]
    async with serving(kind.wire) as upstream:
        upstream.respond = lambda _: Answer(input_tokens=20_000, extra={"cache_written": 19_000})
        upstream.answers.append(Answer(instead=tool_call_events(kind, "toolu_1")))
        workers = [
            remote(kind, upstream.url, model="claude-9", price=B),
            scripted("b", "B says.", price=FREE),
        ]
        async with served(team(TO_A, workers=workers, workflows={})) as api:
            called = (await api.http.post("/v1/messages", json=body | {"messages": messages})).json()[
                "content"
            ]
            (use,) = [block for block in called if block["type"] == "tool_use"]
            block: Json = {"type": "tool_result", "tool_use_id": use["id"], "content": "X."}
            messages += [{"role": "assistant", "content": called}, {"role": "user", "content": [block]}]
            reply = (await api.http.post("/v1/messages", json=body | {"messages": messages})).json()[
                "content"
            ]
            block["content"] = result
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "And now?"}]
            await api.http.post("/v1/messages", json=body | {"messages": messages})
            prompt = api.worker("conductor").calls[-1].messages[-1].text
    assert (name in prompt) == is_cached


async def test_changed_tools_change_the_prefix_and_a_switch_is_free() -> None:
    settings = settings_for(TO_A, TO_B, conversation={"speculation_usd_per_s": None})
    async with served(settings) as api:
        await run(api, LONG, tools=[READ])
        record = await run(
            api, LONG, "And now?", tools=[READ, READ | {"function": READ["function"] | {"name": "write"}}]
        )
    assert record["answer"] == "B says."


HALF: Json = {"extra": {"cache_written": 10_000}}
WHOLE: Json = {"extra": {"cache_written": 19_900}}
MARK: Json = {"cache_control": {"type": "ephemeral"}}


@pytest.mark.parametrize(
    ("reported", "policy", "marks", "n_cached"),
    [
        (WHOLE, {}, [{}, {}], 19_900),
        (HALF, {}, [{}, {}], 10_000),
        ({}, {}, [{}, {}], 0),
        (WHOLE, {"breakpoints": False}, [MARK, MARK], 19_900),
        ({}, {"breakpoints": False}, [{}, {}], 0),
        (WHOLE, {"breakpoints": False}, [MARK, {}], 0),
    ],
    ids=["all of it", "a part", "nothing", "the client's breakpoints", "no breakpoints", "no longer the client's"],
)  # fmt: skip
async def test_a_claude_model_reads_reported_cached_tokens_only_at_breakpoints(
    reported: Json, policy: Json, marks: list[Json], n_cached: int
) -> None:
    kind = PROVIDERS["anthropic"]
    async with serving(kind.wire) as upstream:
        upstream.respond = lambda _: Answer(input_tokens=20_000, **reported)
        workers = [
            remote(kind, upstream.url, model="claude-9", price=B),
            scripted("b", "B says.", price=FREE),
        ]
        settings = team(TO_A, workers=workers, workflows={}, conversation=policy)
        async with served(settings) as api:
            for words, mark in zip([(LONG,), (LONG, "And now?")], marks, strict=True):
                messages = turns(*words)
                messages[-1]["content"] = [{"type": "text", "text": messages[-1]["content"], **mark}]
                await api.ok({"messages": messages})
            prompt = api.worker("conductor").calls[-1].messages[-1].text
    tokens = f"has {n_cached:,} tokens of this conversation in its cache"
    assert tokens in prompt if n_cached else "in its cache" not in prompt


async def test_a_conversation_stays_at_the_healthy_deployment_with_its_cache() -> None:
    kind, keys = PROVIDERS["openai"], {"KEY_X": "key-x", "KEY_Y": "key-y"}
    async with serving(kind.wire) as upstream:
        upstream.respond = lambda _: Answer(input_tokens=20_000)
        places = [{"name": name[-1].lower(), "api_key_env": name} for name in keys]
        worker = remote(kind, upstream.url, model="gpt-9", price=A, deployments=places)
        settings = team(TO_A, workers=[worker, scripted("b", "B says.", price=B)], workflows={})
        async with served(settings, keys, prompt_caches=(caches := Caches())) as api:
            await run(api, LONG)
            first = caches.rows[-1]
            away = "y" if first.deployment == "x" else "x"
            caches.keep(replace(first, deployment=away, written_us=first.written_us + 1), "")
            assert sources(await run(api, LONG, "And now?")) == ["conversation"]
            assert caches.rows[-1].deployment == away
            limiter = api.service.pool.limiters["a"]
            assert isinstance(limiter, SharedLimiter)
            next(each for each in limiter._deployments if each.name == away).health.skip(60.0)
            record = await run(api, LONG, "And now?", "Then?")
            assert sources(record)[0] == "conductor", "the cache cannot be reached"
            assert caches.rows[-1].deployment == first.deployment


async def test_a_conversations_plans_use_one_deployment_and_their_own_cache_key() -> None:
    kind, keys = PROVIDERS["openai"], {"KEY_X": "key-x", "KEY_Y": "key-y"}
    async with serving(kind.wire) as upstream:
        upstream.respond = lambda request: Answer(
            text=TO_A if request.body["model"] == "gpt-9" else "A says."
        )
        places = [{"name": name[-1].lower(), "api_key_env": name} for name in keys]
        shared: Json = {"price": FREE, "deployments": places, "service": "azure", "api_version": "1"}
        conductor = remote(kind, upstream.url, model="gpt-9", name="conductor", in_pool=False, **shared)
        workers = [conductor, remote(kind, upstream.url, model="gpt-8", **shared)]
        settings: Json = {"conductor": {"worker": "conductor"}, "workers": workers, "models": {"mini": {}}}
        async with served(settings, keys) as api:
            words = [LONG]
            for _ in range(8):
                await run(api, *words, podium={"conversation": "trip"})
                words.append("And now?")
    calls = [
        {(each.headers["api-key"], each.body["prompt_cache_key"]) for each in upstream.requests if each.body["model"] == model}
        for model in ("gpt-9", "gpt-8")
    ]  # fmt: skip
    ((_, plan_key),), ((_, worker_key),) = calls
    assert plan_key == f"{worker_key}-plan"


@pytest.mark.parametrize("model", ["a", "mini"])
async def test_a_tool_loop_stays_at_the_deployment_of_its_last_call(model: str) -> None:
    kind, keys = PROVIDERS["openai"], {"KEY_X": "key-x", "KEY_Y": "key-y"}
    async with serving(kind.wire) as upstream:
        places = [{"name": name[-1].lower(), "api_key_env": name} for name in keys]
        worker = remote(kind, upstream.url, model="gpt-9", price=A, deployments=places)
        async with served(team(TO_A, workers=[worker], workflows={}), keys) as api:
            limiter = api.service.pool.limiters["a"]
            assert isinstance(limiter, SharedLimiter)
            for n, resting in enumerate(limiter._deployments):
                upstream.answers.append(Answer(instead=tool_call_events(kind, f"call_{n}")))
                resting.health.skip(60.0)
                body = {"model": model, "tools": [READ], "podium": {"conversation": str(n)}}
                answer = await api.ok(body | {"messages": turns("Why?")})
                resting.health.skip_until_s = 0.0
                message = answer["choices"][0]["message"]
                result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "X."}
                await api.ok(body | {"messages": [*turns("Why?"), message, result]})
                first, second = (each.headers["authorization"] for each in upstream.requests[-2:])
                assert first == second != f"Bearer {keys['KEY_' + resting.name.upper()]}"


async def test_one_hour_caching_ends_after_ten_quick_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(settings_for(TO_A, a=FREE, b=FREE, conversation={"stickiness": 0})) as api:
        words, lifetimes = ["Why?"], list[str]()
        for n in range(13):
            with monkeypatch.context() as patch:
                if n == 1:
                    patch.setattr("serving.api.conversation.now_us", lambda: now_us() + 400_000_000)
                await run(api, *words)
            cache = api.worker("a").calls[-1].sampling.options.prompt_cache
            assert cache is not None
            lifetimes.append(cache.lifetime)
            words.append("And now?")
    assert lifetimes == ["", *["1h"] * 10, "", ""]


async def test_an_expired_cache_is_ignored_and_then_written_for_an_hour(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with served(settings_for(TO_A, TO_A)) as api:
        await run(api, LONG)
        monkeypatch.setattr("serving.api.conversation.now_us", lambda: now_us() + 400_000_000)
        record = await run(api, LONG, "And now?")
        assert sources(record)[0] == "conductor"
        cache = api.worker("a").calls[-1].sampling.options.prompt_cache
        assert cache is not None
        assert cache.lifetime == "1h"


@pytest.mark.parametrize(
    ("provider", "model", "source"),
    [
        ("anthropic", {"model": "claude-9"}, "conversation"),
        ("anthropic", {"model": "profile-7", "like": "claude-9"}, "conversation"),
        ("openai", {"model": "gpt-9"}, "conductor"),
    ],
)
async def test_only_caches_with_breakpoints_last_an_hour(
    monkeypatch: pytest.MonkeyPatch, provider: str, model: Json, source: str
) -> None:
    kind = PROVIDERS[provider]
    async with serving(kind.wire) as upstream:
        upstream.respond = lambda _: Answer(input_tokens=20_000, extra={"cache_written": 20_000})
        workers = [remote(kind, upstream.url, **model, price=A), scripted("b", "B says.", price=B)]
        async with served(team(TO_A, workers=workers, workflows={})) as api:
            await run(api, LONG)
            monkeypatch.setattr("serving.api.conversation.now_us", lambda: now_us() + 400_000_000)
            assert sources(await run(api, LONG, "And now?"))[0] == "conductor"
            assert sources(await run(api, LONG, "And now?", "Then?"))[0] == source


@pytest.mark.parametrize(
    ("hints", "source"),
    [
        ({}, "conductor"),
        ({"prompt_cache_options": {"ttl": "30m"}}, "conversation"),
        ({"prompt_cache_retention": "24h"}, "conversation"),
    ],
)
async def test_an_openai_cache_lasts_as_long_as_the_request_specifies(
    monkeypatch: pytest.MonkeyPatch, hints: Json, source: str
) -> None:
    async with served(settings_for(TO_A, TO_B)) as api:
        await run(api, LONG, **hints)
        monkeypatch.setattr("serving.api.conversation.now_us", lambda: now_us() + 400_000_000)
        assert sources(await run(api, LONG, "And now?", **hints))[0] == source


@pytest.mark.parametrize(("setting", "lifetime"), [("auto", ""), ("5m", "5m"), ("1h", "1h")])
async def test_a_configured_lifetime_applies_to_every_breakpoint(setting: str, lifetime: str) -> None:
    async with served(settings_for(conversation={"cache_lifetime": setting})) as api:
        await api.ok({"model": "a"})
        cache = api.worker("a").calls[-1].sampling.options.prompt_cache
    assert cache is not None
    assert cache.lifetime == lifetime


@pytest.mark.parametrize(
    "podium", [{"plan": [step("b", "")]}, {"workers": ["b"]}, {"exclude_workers": ["a"]}]
)
async def test_a_request_that_excludes_the_worker_is_not_a_follow_up(podium: Json) -> None:
    async with served(settings_for(TO_A, TO_B)) as api:
        await run(api, LONG)
        record = await run(api, LONG, "And now?", podium=podium)
        assert "conversation" not in sources(record)


PICTURE: Json = {"type": "image_url", "image_url": {"url": pictures.DATA_URL}}
PDF: Json = {
    "type": "file",
    "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0xLjQ="},
}


@pytest.mark.parametrize(
    ("lacks", "parts", "more"),
    [
        ({"sees_images": False}, [PICTURE], {}),
        ({"reads_pdfs": False}, [PDF], {}),
        ({"calls_tools": False}, [], {"tools": [READ]}),
    ],
)
async def test_a_worker_without_a_needed_capability_does_not_keep_the_turn(
    lacks: Json, parts: list[Json], more: Json
) -> None:
    settings = settings_for(TO_A, TO_B)
    settings["workers"][1] |= lacks
    settings["workers"][2] |= {"sees_images": True, "reads_pdfs": True}
    async with served(settings) as api:
        await run(api, LONG)
        messages = turns(LONG, "Look.")
        messages[-1]["content"] = [{"type": "text", "text": "Look."}, *parts]
        answer = await api.post({"messages": messages, **more})
        record = await api.record(answer.headers["x-podium-workflow-id"])
        assert (sources(record), record["answer"]) == (["conductor"], "B says.")
        assert sources(await run(api, LONG, "And now?")) == ["conversation"]


async def test_calls_of_workers_by_name_are_not_remembered() -> None:
    async with served(settings_for(TO_A)) as api:
        await run(api, LONG, model="a")
        assert sources(await run(api, LONG, "And now?")) == ["conductor"]


async def test_the_next_turn_at_another_router_stays_on_its_worker(tmp_path: Path) -> None:
    async with replicas(make_file(tmp_path / "podium.db"), settings_for(TO_A, TO_B)) as (one, other):
        await run(one.api, LONG)
        await one.api.service.prompt_caches.flush()
        assert sources(await run(other.api, LONG, "And now?")) == ["conversation"]
        await other.api.service.prompt_caches.flush()
        assert sources(await run(one.api, LONG, "And now?", "Then?")) == ["conversation"]
        await one.api.service.prompt_caches.flush()
        rows = await one.rows("SELECT worker, n_messages, turns FROM prompt_cache")
        assert [tuple(row) for row in rows] == [("a", 5, 3)]


class Caches(PromptCaches):
    """Prompt caches in memory that note the stored rows, and may fail."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.error, self.rows = error, list[PromptCacheRow]()

    def keep(self, row: PromptCacheRow, key_id: str, *, stores: bool = True) -> None:
        self.rows.append(row)
        if self.error is not None:
            raise self.error
        super().keep(row, key_id, stores=stores)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_is_remembered_once(stream: bool) -> None:
    async with served(settings_for(TO_A), prompt_caches=(caches := Caches())) as api:
        await api.post({"messages": turns("Why?"), "stream": stream})
        await api.quiet()
        assert len(caches.rows) == 1


async def test_a_run_succeeds_although_its_turn_cannot_be_remembered() -> None:
    async with served(settings_for(TO_A), prompt_caches=Caches(RuntimeError("any fault"))) as api:
        assert (await run(api, "Why?"))["answer"] == "A says."
        assert (await api.newest())["status"] == "finished"


async def test_a_store_that_does_not_respond_delays_a_turn_only_briefly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def never(*_: Any) -> list[Any]:
        await asyncio.sleep(0.2)
        return []

    async with served(settings_for(TO_A, TO_B)) as api:
        await run(api, LONG)
        monkeypatch.setattr(PromptCaches, "find", never)
        assert sources(await run(api, LONG, "And now?")) == ["conductor"]
