"""Order of requests for a worker with one slot, with the official SDKs over real sockets."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, get_args

import openai
import pytest

from serving.api.request import Tier
from serving.health import FAILURES_BEFORE_OPEN
from tests.serving.api.calling_team import calling_team
from tests.serving.api.keyed import Keyed, keyed
from tests.serving.api.served import PRICE, plan, scripted, served, step, team
from tests.states import until

BUSY = team(
    workers=[
        scripted("a", "Done.", delay_s=1.0, max_concurrency=1, price=PRICE),
        scripted("b"),
        scripted("c"),
    ]
)


def ask(sdk: openai.AsyncOpenAI, text: str, model: str = "a", **fields: Any) -> "asyncio.Task[Any]":
    messages: Any = [{"role": "user", "content": text}]
    return asyncio.create_task(sdk.chat.completions.create(model=model, messages=messages, **fields))


def texts_of(calls: list[Any]) -> list[str]:
    return [call.messages[-1].text for call in calls]


async def test_a_flex_request_is_served_after_interactive_ones() -> None:
    async with served(BUSY) as api:
        slots, tasks = api.service.pool.limiters["a"], [ask(api.sdk, "first")]
        await until(lambda: slots.is_full)
        tasks.append(ask(api.sdk, "flex", service_tier="flex"))
        await until(lambda: slots.queued == 1)
        tasks += [ask(api.sdk, "later"), ask(api.sdk, "later", service_tier="priority")]
        await until(lambda: slots.queued == 3)
        answers = await asyncio.gather(*tasks)
        assert texts_of(api.worker("a").calls) == ["first", "later", "later", "flex"]
        assert [each.service_tier for each in answers] == ["default", "flex", "default", "default"]
        response = await api.sdk.responses.create(model="a", input="Hi", service_tier="flex")
        assert response.service_tier == "flex"
        record = await api.newest()
        assert record["priority"] == "batch"
        assert "left_out" not in record


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("chat/completions", {"messages": [{"role": "user", "content": "Hi"}]}),
        ("completions", {"prompt": "Hi"}),
        ("responses", {"input": "Hi"}),
    ],
)
async def test_an_unknown_service_tier_is_rejected_and_every_known_one_accepted(
    path: str, fields: dict[str, Any]
) -> None:
    async with served(BUSY) as api:
        for tier in ("batch", "Flex", 7, "", ["flex"]):
            refused = await api.http.post(f"/v1/{path}", json={"model": "b", **fields, "service_tier": tier})
            error = refused.json()["error"]
            assert (refused.status_code, error["param"]) == (400, "service_tier"), (tier, error)
            assert "'flex'" in error["message"], error
        for tier in (*get_args(Tier), None):
            response = await api.http.post(f"/v1/{path}", json={"model": "b", **fields, "service_tier": tier})
            assert response.status_code == 200, (tier, response.text)


async def test_many_requests_of_one_key_delay_another_key_by_one_call(tmp_path: Path) -> None:
    async with keyed(tmp_path, BUSY) as it:
        slots = it.api.service.pool.limiters["a"]
        flood = [ask(_sdk(it, "mine"), f"flood {n}") for n in range(4)]
        await until(lambda: slots.queued == 3)
        last = ask(_sdk(it, "other team"), "one")
        await until(lambda: slots.queued == 4)
        await asyncio.gather(*flood, last)
        assert texts_of(it.api.worker("a").calls).index("one") <= 3


async def test_a_request_with_too_long_a_wait_gets_retry_after_but_not_another_key(
    tmp_path: Path,
) -> None:
    brisk = scripted("a", "Done.", delay_s=0.7, max_concurrency=1, max_wait_s=2.0, price=PRICE)
    async with keyed(tmp_path, team(workers=[brisk, scripted("b"), scripted("c")])) as it:
        slots = it.api.service.pool.limiters["a"]
        await ask(_sdk(it, "mine"), "so that its pace is known")
        flood = [ask(_sdk(it, "mine"), f"flood {n}") for n in range(3)]
        await until(lambda: slots.queued == 2)
        with pytest.raises(openai.RateLimitError) as refused:
            await ask(_sdk(it, "mine"), "too many")
        assert refused.value.code == "overloaded"
        assert 1 <= int(refused.value.response.headers["retry-after"]) <= 3
        one = ask(_sdk(it, "other team"), "one")
        flex = ask(_sdk(it, "mine"), "flex", service_tier="flex")
        await asyncio.gather(*flood[:2], one, flex)
        # An admitted request may be rejected later, if another key's call went first.
        await asyncio.wait(flood[2:])
        texts = texts_of(it.api.worker("a").calls)
        assert "too many" not in texts
        assert texts[-1] == "flex", "nobody waits for it: it waits"


async def test_a_key_with_long_answers_does_not_hold_every_slot(tmp_path: Path) -> None:
    slow = scripted("a", "Done.", delay_s=1.0, max_concurrency=4)
    async with keyed(tmp_path, team(workers=[slow, scripted("b"), scripted("c")])) as it:
        slots, worker = it.api.service.pool.limiters["a"], it.api.worker("a")
        await ask(_sdk(it, "other team"), "so that it is one of those that call")
        flood = [ask(_sdk(it, "mine"), f"flood {n}") for n in range(6)]
        await until(lambda: slots.open_calls + slots.queued == 6)
        await ask(_sdk(it, "other team"), "one")
        texts = texts_of(worker.calls)
        assert texts.index("one") <= 4, "before the flood's fourth"
        await asyncio.gather(*flood)


async def test_a_queued_request_fails_after_its_maximum_wait(
    tmp_path: Path,
) -> None:
    settings = scripted("a", {"text": "one two", "stall_after_tokens": 1}, max_concurrency=2, max_wait_s=0.5)
    async with keyed(tmp_path, team(workers=[settings, scripted("b"), scripted("c")])) as it:
        slots = it.api.service.pool.limiters["a"]
        slow = [ask(_sdk(it, "mine"), f"slow {n}") for n in range(2)]
        await until(lambda: slots.is_full)
        with pytest.raises(openai.RateLimitError) as refused:
            await asyncio.wait_for(ask(_sdk(it, "other team"), "one"), 10)
        assert (refused.value.status_code, refused.value.code) == (429, "line_too_long")
        headers = refused.value.response.headers
        assert (headers["retry-after"], headers["x-should-retry"]) == ("1", "true")
        assert it.api.service.pool.health["a"].circuit == "closed"
        await leave(slow)


HANGS = {"text": "one two", "stall_after_tokens": 0}


async def leave(tasks: list["asyncio.Task[Any]"]) -> None:
    for each in tasks:
        each.cancel()
    await asyncio.wait(tasks)


async def test_runs_answered_by_a_fallback_are_not_counted_in_the_failed_workers_queue() -> None:
    brisk = scripted("a", "Done.", delay_s=0.1, max_concurrency=1, max_wait_s=0.5, fallbacks=["b"])
    async with served(team(workers=[brisk, scripted("b", HANGS)], workflows={})) as api:
        slots, health = api.service.pool.limiters["a"], api.service.pool.health["a"]
        await ask(api.sdk, "so that its pace is known")
        for _ in range(FAILURES_BEFORE_OPEN):
            health.fail()
        tasks = [ask(api.sdk, "meanwhile") for _ in range(10)]
        await until(lambda: api.worker("b").open_calls == 10)
        assert slots.wait_s("") == 0
        health.skip_until_s = 0.0
        answer = await ask(api.sdk, "once it is well")
        assert (answer.model, answer.choices[0].message.content) == ("a", "Done.")
        assert health.circuit == "closed"
        await leave(tasks)


async def test_runs_planned_by_another_conductor_are_not_counted_in_the_failed_ones_queue() -> None:
    workers = [scripted("second", plan(step("a")), in_pool=False), scripted("a", HANGS)]
    settings = team(plan(step("a")), workers=workers, workflows={})
    settings["workers"][0] |= {"fallbacks": ["second"]}
    async with served(settings) as api:
        for _ in range(FAILURES_BEFORE_OPEN):
            api.service.pool.health["conductor"].fail()
        tasks = [ask(api.sdk, "meanwhile", model="mini") for _ in range(5)]
        await until(lambda: api.worker("a").open_calls == 5)
        assert api.service.pool.limiters["conductor"]._coming == {}
        await leave(tasks)


HANGING = team(
    workers=[scripted("a", {"text": "x y", "stall_after_tokens": 1}), scripted("b"), scripted("c")],
    limits={"max_running": 10},
)


@pytest.mark.parametrize("flooding", [("mine",), ("mine", "other team"), ()], ids=["one", "many", "none"])
async def test_flex_requests_may_use_half_of_the_routers_slots(
    tmp_path: Path, flooding: tuple[str, ...]
) -> None:
    async with AsyncExitStack() as stack:
        if flooding:
            it = await stack.enter_async_context(keyed(tmp_path, HANGING))
            api, sdks = it.api, [_sdk(it, who) for who in flooding]
        else:
            api = await stack.enter_async_context(served(HANGING))
            sdks = [api.sdk]
        flood = [ask(sdk, f"flex {n}", service_tier="flex") for n in range(12 // len(sdks)) for sdk in sdks]
        try:
            await until(lambda: sum(each.done() for each in flood) == 7)
            await until(lambda: api.service.running == 5)
            refused = next(each.exception() for each in flood if each.done())
            assert isinstance(refused, openai.RateLimitError)
            assert (refused.code, refused.response.headers["retry-after"]) == ("overloaded", "1")
            assert "without `service_tier: flex`" in refused.message
            flood += [ask(sdks[0], f"one {n}") for n in range(4)]
            await until(lambda: api.service.running == 9)
        finally:
            for each in flood:
                each.cancel()
            await asyncio.wait(flood)


async def test_a_flex_run_waiting_for_tools_keeps_waiting_while_its_share_is_full() -> None:
    settings: Any = calling_team() | {"limits": {"max_running": 4}}
    settings["workers"].append(scripted("b", {"text": "x y", "stall_after_tokens": 1}))
    tools: Any = [{"type": "function", "function": {"name": "clock"}}]
    messages: Any = [{"role": "user", "content": "When?"}]
    async with served(settings) as api:

        async def turn() -> Any:
            return await api.sdk.chat.completions.create(
                model="a", messages=messages, tools=tools, service_tier="flex"
            )

        message = (await turn()).choices[0].message
        call_id = message.tool_calls[0].id
        messages += [message, {"role": "tool", "tool_call_id": call_id, "content": "noon"}]
        others = [asyncio.create_task(api.ok({"model": "b"})) for _ in range(2)]
        await until(lambda: api.service.running == 2)
        with pytest.raises(openai.RateLimitError):
            await turn()
        for each in others:
            each.cancel()
        await until(lambda: api.service.running == 0)
        assert (await turn()).choices[0].message.content == "They gave: noon."


def _sdk(it: Keyed, who: str) -> openai.AsyncOpenAI:
    return it.api.openai(it.secrets[who])
