"""The words of a step that begins again, for those who had read some of them: none twice, and none of the first try's."""

import asyncio
from typing import Any

import pytest

from serving.database.address import Address
from tests.serving.api.served import Json, plan, scripted, served, step, team
from tests.serving.api.test_watching import said, watch
from tests.serving.runs.stores import replicas
from tests.serving.states import until

WORDS = "one two three four five six"
BREAKS: Json = {"text": WORDS, "fail_after_tokens": 4}


def two_steps(first: list[Any], last: list[Any]) -> Json:
    workers = [scripted("a", *first, tokens_per_s=20), scripted("b", *last, tokens_per_s=20)]
    return team(plan(step("a"), step("b", access=[0])), workers=workers, workflows={})


async def tell_watcher(settings: Json) -> list[Json]:
    async with served(settings) as api:
        asked = asyncio.create_task(api.ok())
        await until(lambda: api.service.running == 1, "the run goes on")
        (listed,) = (await api.http.get("/v1/workflows?limit=1")).json()["data"]
        events = await asyncio.wait_for(watch(api, listed["id"]), 20)
        await asked
    return events


async def test_what_waited_of_an_inner_steps_first_try_is_not_told_before_its_second():
    events = await tell_watcher(two_steps([BREAKS, WORDS], ["Done."]))
    again = events[[each["type"] for each in events].index("step_restarted") :]
    assert said(again, 0)
    assert WORDS.startswith(said(again, 0))


@pytest.mark.parametrize("second", [WORDS, "alpha beta gamma delta"])
async def test_watchers_have_the_answer_once_where_its_step_begins_again(second: str):
    events = await tell_watcher(two_steps(["A."], [BREAKS, second]))
    answer = ""
    for each in events:
        if each["type"] in ("answer", "answer_restarted"):
            answer = each["text"] if each["type"] == "answer_restarted" else answer + each["text"]
    assert answer == second
    assert ("answer_restarted" in [each["type"] for each in events]) == (second != WORDS)


async def test_a_response_that_is_told_again_says_what_the_stored_one_says(store_address: Address):
    settings = team(workers=[scripted("a", BREAKS, "alpha beta gamma")], workflows={})
    async with replicas(store_address, settings, n=1) as (one,), one.api.sdk as sdk:
        made = await sdk.responses.create(model="a", input="Say it.", background=True)
        while (held := await sdk.responses.retrieve(made.id)).status == "in_progress":
            await asyncio.sleep(0.05)
        told = [event async for event in await sdk.responses.retrieve(made.id, stream=True)]
    pieces = "".join(event.delta for event in told if event.type == "response.output_text.delta")
    assert told[-1].type == "response.completed"
    assert told[-1].response.output_text == held.output_text == pieces == "alpha beta gamma"


@pytest.mark.parametrize("is_last", [True, False])
async def test_an_answer_of_a_run_inside_a_run_is_no_two_tries_glued_together(is_last: bool):
    outer = plan(step("team"), *([] if is_last else [step("b", access=[0])]))
    workers = [scripted("a", BREAKS, WORDS), scripted("b", "{question}")]
    settings = team(outer, plan(step("a")), workers=workers, workflows={}, models={"mini": {"depth": 2}})
    async with served(settings) as api:
        text = (await api.ok())["choices"][0]["message"]["content"]
    assert WORDS in text
    assert "four" not in text.replace(WORDS, ""), "of the first try nothing is left"
    assert text.count("three") == 1


async def test_where_no_budget_is_left_for_a_second_try_the_first_ones_error_is_told():
    price = {"input_usd_per_mtok": 1000, "output_usd_per_mtok": 2000}
    settings = team(workers=[scripted("a", BREAKS, WORDS, price=price)], workflows={})
    async with served(settings) as api:
        answer = await api.post({"model": "a", "max_tokens": 100}, max_cost_usd=0.3)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "worker_unavailable")
        assert len(api.worker("a").calls) == 1
        assert (await api.newest())["status"] == "failed"
