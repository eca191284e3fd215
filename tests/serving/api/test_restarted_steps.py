"""Words of a restarted step, for clients that had read some: none is repeated, and none is of the first try."""

import asyncio
from typing import Any

import pytest

from serving.database.address import Address
from tests.serving.api.served import Json, plan, scripted, served, step, team
from tests.serving.api.test_live_events import text_of, watch
from tests.serving.store.stores import replicas
from tests.states import until
from tests.wires.anthropic import AnthropicWire
from tests.wires.server import Answer, serving

WORDS = "one two three four five six"
BREAKS: Json = {"text": WORDS, "fail_after_tokens": 4}


def two_steps(first: list[Any], last: list[Any]) -> Json:
    workers = [scripted("a", *first, tokens_per_s=20), scripted("b", *last, tokens_per_s=20)]
    return team(plan(step("a"), step("b", access=[0])), workers=workers, workflows={})


async def tell_watcher(settings: Json) -> list[Json]:
    async with served(settings) as api:
        task = asyncio.create_task(api.ok())
        await until(lambda: api.service.running == 1, "the run goes on")
        (listed,) = (await api.http.get("/v1/workflows?limit=1")).json()["data"]
        events = await asyncio.wait_for(watch(api, listed["id"]), 20)
        await task
    return events


async def test_buffered_text_of_a_failed_first_attempt_is_not_shown():
    events = await tell_watcher(two_steps([BREAKS, WORDS], ["Done."]))
    again = events[[each["type"] for each in events].index("step_restarted") :]
    assert text_of(again, 0)
    assert WORDS.startswith(text_of(again, 0))


@pytest.mark.parametrize("second", [WORDS, "alpha beta gamma delta"])
async def test_watchers_get_the_answer_once_although_its_step_restarts(second: str):
    events = await tell_watcher(two_steps(["A."], [BREAKS, second]))
    answer = ""
    for each in events:
        if each["type"] in ("answer", "answer_restarted"):
            answer = each["text"] if each["type"] == "answer_restarted" else answer + each["text"]
    assert answer == second
    assert ("answer_restarted" in [each["type"] for each in events]) == (second != WORDS)


async def test_a_watcher_after_the_restart_gets_nothing_of_the_first_attempt(store_address: Address):
    """Nobody watched before the restart, so the text was kept in one piece."""
    settings = team(workers=[scripted("a", BREAKS, WORDS, tokens_per_s=10)], workflows={})
    async with replicas(store_address, settings, n=1) as (one,):
        api = one.api
        task = asyncio.create_task(api.ok({"model": "a"}))
        await until(lambda: len(api.worker("a").calls) == 2, "it has begun again")
        (listed,) = (await api.http.get("/v1/workflows?limit=1")).json()["data"]
        events = await asyncio.wait_for(watch(api, listed["id"]), 20)
        await task
    answers = [each for each in events if each["type"] in ("answer", "answer_restarted")]
    assert "".join(each["text"] for each in answers) == WORDS
    assert "answer_restarted" not in [each["type"] for each in answers]


async def test_a_response_streamed_again_equals_the_stored_one(store_address: Address):
    settings = team(workers=[scripted("a", BREAKS, "alpha beta gamma")], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), one.api.sdk as sdk:
        response = await sdk.responses.create(model="a", input="Say it.", background=True)
        while (latest := await sdk.responses.retrieve(response.id)).status == "in_progress":
            await asyncio.sleep(0.05)
        events = [event async for event in await sdk.responses.retrieve(response.id, stream=True)]
    pieces = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == latest.output_text == pieces == "alpha beta gamma"


@pytest.mark.parametrize("is_last", [True, False])
async def test_an_inner_runs_answer_contains_only_one_attempt(is_last: bool):
    outer = plan(step("team"), *([] if is_last else [step("b", access=[0])]))
    workers = [scripted("a", BREAKS, WORDS), scripted("b", "{question}")]
    settings = team(outer, plan(step("a")), workers=workers, workflows={}, models={"mini": {"depth": 2}})
    async with served(settings) as api:
        text = (await api.ok())["choices"][0]["message"]["content"]
    assert WORDS in text
    assert "four" not in text.replace(WORDS, ""), "of the first try nothing is left"
    assert text.count("three") == 1


async def test_without_budget_for_a_second_attempt_the_first_error_is_returned():
    price = {"input_usd_per_mtok": 1000, "output_usd_per_mtok": 2000}
    settings = team(workers=[scripted("a", BREAKS, WORDS, price=price)], workflows={})
    async with served(settings) as api:
        answer = await api.post({"model": "a", "max_tokens": 100}, max_cost_usd=0.23)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "worker_unavailable")
        assert len(api.worker("a").calls) == 1
        assert (await api.newest())["status"] == "failed"


BUSY = BREAKS | {"error": "busy"}


@pytest.mark.parametrize("kind", ["busy", "unavailable"])
async def test_a_worker_that_becomes_busy_in_its_answer_is_replaced_by_its_fallback(kind: str):
    workers = [scripted("a", BREAKS | {"error": kind}, fallbacks=["b"]), scripted("b", "Well.")]
    async with served(team(workers=workers, workflows={})) as api:
        answer = await api.ok({"model": "a"})
        (step_json,) = (await api.newest())["steps"]
    assert answer["choices"][0]["message"]["content"] == "Well."
    assert (step_json["served_by"], step_json["attempts"][0]["outcome"]) == ("b", "cut")


async def test_an_inner_step_whose_worker_becomes_busy_restarts():
    async with served(two_steps([BUSY, WORDS], ["Done."])) as api:
        assert (await api.ok())["choices"][0]["message"]["content"] == "Done."
        assert len(api.worker("a").calls) == 2


async def test_a_single_worker_with_a_long_retry_after_is_not_retried():
    async with served(two_steps([BUSY | {"retry_after_s": 30}, WORDS], ["Done."])) as api:
        answer = await api.post()
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "worker_busy")
        assert len(api.worker("a").calls) == 1


@pytest.mark.parametrize("kind", ["overloaded_error", "rate_limit_error"])
async def test_an_overloaded_claude_in_mid_stream_is_replaced_by_its_fallback(
    kind: str,
):
    overloaded = Answer(error_after=5, extra={"type": kind})
    async with serving(AnthropicWire(), overloaded) as upstream:
        claude: Json = {"name": "a", "kind": "anthropic", "model": "m", "base_url": upstream.url}
        workers = [claude | {"fallbacks": ["b"]}, scripted("b", "{question}"), scripted("c", "Done.")]
        steps = [step("c", "Begin."), step("a", "Say b's word.", [0]), step("c", "End it.", [1])]
        settings = team(workers=workers, workflows={"three": steps})
        async with served(settings) as api:
            assert (await api.ok({"model": "three"}))["choices"][0]["message"]["content"] == "Done."
            step_json = (await api.newest())["steps"][1]
    assert (len(upstream.requests), step_json["served_by"]) == (1, "b")
    assert (step_json["attempts"][0]["error"], step_json["attempts"][0]["outcome"]) == ("WorkerBusy", "cut")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_worker_that_breaks_every_answer_is_retried_within_its_retry_budget(stream: bool):
    worker = scripted("a", {"text": WORDS, "fail_after_tokens": 4}, retry={"share": 0.2})
    async with served(team(workers=[worker], workflows={})) as api:
        for _ in range(60):
            await api.post({"model": "a", "stream": stream})
        n_calls = len(api.worker("a").calls)
    assert 70 <= n_calls <= 60 + 10 + 60 * 0.2, "ten to begin with, and a fifth of its calls"
