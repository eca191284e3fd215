"""Failures of workers and the conductor: before the first byte, after it, and recovered without effect on the caller."""

import time

import openai
import pytest

from tests.serving.api.provider_faults import MIDDLE
from tests.serving.api.served import ASK, PRICE, Json, answer_text, plan, scripted, served, step, team
from tests.wires.faults import Fault, faulty
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, serving

BROKEN = scripted("a", {"error": "refused"})
HALF = scripted("a", {"text": "one two three four", "fail_after_tokens": 2})
SOON = {"first_wait_s": 0.001, "max_wait_s": 0.01}


@pytest.mark.parametrize(
    ("kind", "status", "code", "raised"),
    [
        ("refused", 502, "worker_refused", openai.InternalServerError),
        ("unavailable", 502, "worker_unavailable", openai.InternalServerError),
        ("busy", 503, "worker_busy", openai.InternalServerError),
        ("overflow", 400, "context_length_exceeded", openai.BadRequestError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_before_the_first_byte_is_an_http_status(kind, status, code, raised, stream: bool):
    worker = scripted(
        "a", {"error": kind, "retry_after_s": 7 if kind == "busy" else None}, retry={"attempts": 1}
    )
    settings = team(workers=[worker], workflows={}, limits={"first_byte_s": 10})
    async with served(settings) as api, api.sdk as sdk:
        answer = await api.post({"model": "a", "stream": stream})
        with pytest.raises(raised) as caught:
            await sdk.chat.completions.create(model="a", messages=ASK["messages"], stream=stream)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code)
    assert error.keys() == {"message", "type", "param", "code", "podium"}
    assert (error["podium"]["worker"], error["podium"]["step"]) == ("a", 0)
    assert answer.headers["x-podium-workflow-id"] == error["podium"]["workflow_id"]
    assert answer.headers.get("retry-after") == ("7" if kind == "busy" else None)
    assert (caught.value.status_code, caught.value.code) == (status, code)


async def test_a_failure_after_the_first_byte_is_the_last_event_and_raised_by_the_sdk():
    async with served(team(workers=[HALF], workflows={})) as api, api.sdk as sdk:
        events = await api.events({"model": "a"})
        stream = await sdk.chat.completions.create(model="a", messages=ASK["messages"], stream=True)
        texts: list[str] = []

        async def listen() -> None:
            async for chunk in stream:
                texts.append(chunk.choices[0].delta.content or "")  # noqa: PERF401 - kept where the stream breaks

        with pytest.raises(openai.APIError) as caught:
            await listen()
        record = await api.newest()
    assert events[-2]["error"]["code"] == "worker_unavailable"
    assert events[-1] == "[DONE]"
    assert (answer_text(events), "".join(texts)) == ("one two", "one two")
    assert caught.value.code == "worker_unavailable"
    assert record["status"] == "failed"
    assert record["steps"][0]["output"] == "one two"


async def test_a_late_failure_before_the_first_token_is_the_last_event():
    slow = scripted("a", {"error": "refused"}, delay_s=0.1)
    async with served(team(workers=[slow], workflows={}, limits={"first_byte_s": 0.01})) as api:
        events = await api.events({"model": "a"})
    assert events[-2]["error"]["podium"]["worker"] == "a"


async def test_a_failed_answer_without_a_stream_is_not_returned_partially():
    async with served(team(workers=[HALF], workflows={})) as api:
        answer = await api.post({"model": "a"})
    assert (answer.status_code, answer.headers["x-should-retry"]) == (400, "false"), (
        "what it took is not known"
    )


async def test_an_inner_steps_failure_names_the_step():
    async with served(team(workers=[BROKEN, scripted("b")])) as api:
        error = (await api.post()).json()["error"]
        record = await api.newest()
    assert (error["podium"]["worker"], error["podium"]["step"]) == ("a", 0)
    assert record["steps"][0]["status"] == "failed"
    assert record["error"]["code"] == "worker_refused"


async def test_a_retry_before_the_first_token_is_a_success_with_recorded_attempts():
    worker = scripted("a", {"error": "unavailable"}, {"error": "busy"}, "There.", retry=SOON)
    async with served(team(workers=[worker], workflows={})) as api:
        answer = await api.ok({"model": "a"}, trace=True)
    step = answer["podium"]["steps"][0]
    assert answer["choices"][0]["message"]["content"] == "There."
    assert [t["error"] for t in step["attempts"]] == ["WorkerUnavailable", "WorkerBusy"]
    assert all(t["message"] and 0 <= t["waited_s"] <= 0.01 for t in step["attempts"])


async def test_an_error_lists_its_attempts():
    worker = scripted("a", {"error": "unavailable"}, retry=SOON)
    async with served(team(workers=[worker], workflows={})) as api:
        error = (await api.post({"model": "a"})).json()["error"]
        assert len(api.worker("a").calls) == 3
    assert [t["error"] for t in error["podium"]["attempts"]] == ["WorkerUnavailable"] * 2


async def test_a_fallback_answers_and_the_record_names_the_worker_and_the_reason():
    workers = [BROKEN | {"fallbacks": ["b"]}, scripted("b", "Instead.", price=PRICE)]
    async with served(team(plan(step("a")), workers=workers, workflows={})) as api:
        answer = await api.ok(trace=True)
    step_json = answer["podium"]["steps"][0]
    assert answer["choices"][0]["message"]["content"] == "Instead."
    assert (step_json["worker"], step_json["served_by"]) == ("a", "b")
    assert [(t["worker"], t["error"]) for t in step_json["attempts"]] == [("a", "WorkerRefused")]
    assert step_json["cost_usd"] == pytest.approx((step_json["usage"]["input_tokens"] + 2) / 1e6), (
        "at the price of who answered"
    )


async def test_an_automatic_fallback_answers_and_the_record_states_how_it_was_chosen():
    card, dear = "Physics: light and colours.", {"input_usd_per_mtok": 9, "output_usd_per_mtok": 9}
    ill = BROKEN | {"fallbacks": "auto", "card": card, "price": PRICE}
    workers = [
        ill,
        scripted("dear", card=card, price=dear),
        scripted("same", price=PRICE),
        scripted(
            "alike", {"error": "unavailable"}, card="Colours of light.", price=PRICE, retry={"attempts": 1}
        ),
    ]
    async with served(team(plan(step("a")), workers=workers, workflows={})) as api:
        answer = await api.ok(trace=True)
        record = await api.record(answer["podium"]["workflow_id"])
        listed = (await api.http.get("/v1/workers")).json()["data"]
        assert not api.worker("dear").calls
    step_json = answer["podium"]["steps"][0]
    assert (step_json["worker"], step_json["served_by"]) == ("a", "same")
    assert [t["worker"] for t in step_json["attempts"]] == ["a", "alike"]
    how = "by price, because no card is similar, at the same price"
    assert record["steps"][0]["notes"] == [f"same answered in place of a. Podium chose this fallback {how}."]
    assert {each["id"]: each["fallbacks"] for each in listed}["a"] == [
        {"worker": "alike", "chosen": "by similarity of the cards (0.8), at the same price"},
        {"worker": "same", "chosen": how},
    ]


async def test_a_configured_fallback_leaves_no_note():
    workers = [BROKEN | {"fallbacks": ["b"]}, scripted("b", "Instead.")]
    async with served(team(plan(step("a")), workers=workers, workflows={})) as api:
        record = await api.record((await api.ok())["podium"]["workflow_id"])
        listed = (await api.http.get("/v1/workers")).json()["data"]
    assert (record["steps"][0]["served_by"], record["steps"][0]["notes"]) == ("b", [])
    assert {each["id"]: each["fallbacks"] for each in listed}["a"] == [
        {"worker": "b", "chosen": "in the settings"}
    ]


async def test_an_automatically_chosen_conductor_replaces_a_failed_one():
    ill = scripted("conductor", {"error": "refused"}, in_pool=False, fallbacks="auto")
    workers = [ill, scripted("a", plan(step("b"))), scripted("b", "Blue.")]
    settings = team(workflows={}) | {"workers": workers}
    async with served(settings) as api:
        answer = await api.ok()
        record = await api.record(answer["podium"]["workflow_id"])
    assert answer["choices"][0]["message"]["content"] == "Blue."
    assert [record["plans"][0][key] for key in ("source", "served_by")] == ["conductor", "a"]
    assert record["plans"][0]["notes"][0].startswith(
        "a answered in place of conductor. Podium chose this fallback by price"
    )


async def test_an_invalid_plan_falls_back_to_one_worker_with_a_reason():
    async with served(team("I like trains.", "Choo choo.")) as api:
        body = await api.ok()
        streamed = await api.events()
        record = await api.record(body["podium"]["workflow_id"])
        call = api.worker("a").calls[0]
    assert body["choices"][0]["message"]["content"] == "A reason: scattering."
    assert answer_text(streamed) == "A reason: scattering."
    assert "rejected twice" in body["podium"]["fallback"]
    assert "no_plan" in body["podium"]["fallback"]
    assert streamed[-2]["podium"]["fallback"] == body["podium"]["fallback"]
    assert [p["source"] for p in record["plans"]] == ["conductor", "repair", "fallback"]
    assert [p["output"] for p in record["plans"]] == ["I like trains.", "Choo choo.", None]
    assert call.messages[-1].text == "Why is the sky blue?", "the user's own question, nothing else"


async def test_the_configured_fallback_answers_if_the_request_permits_it():
    settings = team("nonsense", conductor={"worker": "conductor", "fallback": "c"})
    async with served(settings) as api:
        assert (await api.ok())["choices"][0]["message"]["content"] == "c says so."
        assert (await api.ok(exclude_workers=["c"]))["choices"][0]["message"][
            "content"
        ] == "A reason: scattering."


async def test_a_repaired_plan_runs():
    async with served(team(plan(step("nobody")), plan(step("c", "Answer.")))) as api:
        body = await api.ok()
        record = await api.record(body["podium"]["workflow_id"])
    assert (body["podium"]["fallback"], body["choices"][0]["message"]["content"]) == (None, "c says so.")
    assert [(p["source"], p["rejected"]) for p in record["plans"]] == [
        ("conductor", "unknown_worker"),
        ("repair", None),
    ]


@pytest.mark.parametrize("reply", [{"error": "refused"}, {"text": "{ half a plan", "fail_after_tokens": 2}])
async def test_if_the_conductor_fails_one_worker_answers(reply):
    async with served(team(reply)) as api:
        body = await api.ok()
    assert "the conductor failed" in body["podium"]["fallback"]
    assert body["choices"][0]["message"]["content"] == "A reason: scattering."


def led_by(url: str) -> Json:
    leader = {"name": "leader", "kind": "openai", "model": "m", "base_url": f"{url}/v1", "in_pool": False}
    leads = team(conductor={"worker": "leader", "fallback": "c"}, limits={"first_byte_s": 30})
    return leads | {"workers": [leader, *leads["workers"][1:]]}


async def test_a_silent_conductor_leaves_half_of_the_time_to_its_fallback():
    async with faulty(Fault()) as upstream, served(led_by(upstream.url)) as api:
        body = await api.ok({"podium": {"deadline_s": 3}})
        assert body["choices"][0]["message"]["content"] == "c says so."
        assert upstream.requests == 1, "it is not asked again"


async def test_a_conductor_with_an_open_circuit_is_skipped_if_a_worker_can_answer():
    async with faulty(Fault(b"", closes=True)) as upstream, served(led_by(upstream.url)) as api:
        health = api.service.pool.health["leader"]
        for _ in range(3):
            health.fail()
        body = await api.ok()
        assert (body["choices"][0]["message"]["content"], upstream.requests) == ("c says so.", 0)
        assert "was skipped" in body["podium"]["fallback"]
        health.skip_until_s = 0.0
        await api.ok()
        assert upstream.requests == 1, "one request finds out whether it is well"
        health.skip_until_s = time.monotonic() + 60
        api.service.pool.health["c"].skip_until_s = time.monotonic() + 60
        await api.ok()
        assert upstream.requests > 1, "nobody else is free: it is asked all the same"


async def test_a_worker_that_fails_before_its_first_token_returns_502():
    """A script always ends properly, so this one fails before its first word."""
    worker = scripted(
        "a", {"text": "x", "fail_after_tokens": 0, "error": "unavailable"}, retry={"attempts": 1}
    )
    async with served(team(workers=[worker], workflows={})) as api:
        assert (await api.post({"model": "a"})).status_code == 502


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_sdks_do_not_retry_a_failed_run_that_was_billed(path: str) -> None:
    away = {"error": "unavailable"}
    workers = [scripted("a", "A reason."), scripted("b", away, retry={"attempts": 1})]
    async with served(team(workers=workers, workflows={})) as api:
        for model, again in (("mini", "false"), ("b", "true")):  # in Messages, a retry joins the run
            answer = await api.http.post(path, json=ASK | {"model": model, "max_tokens": 50})
            status = 400 if model == "mini" and "chat" in path else 502
            assert (answer.status_code, answer.headers["x-should-retry"]) == (status, again)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_the_message_suggests_a_retry_only_if_the_run_was_not_billed(path: str, stream: bool):
    body: Json = {"stream": stream} | (
        {"input": "Why?"} if path == "/v1/responses" else {"messages": ASK["messages"], "max_tokens": 50}
    )
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: Answer(status=500)
        down: Json = {"name": "down", "kind": "openai", "model": "m", "base_url": f"{upstream.url}/v1"}
        settings: Json = {
            "workers": [scripted("well", "A start.", price=PRICE), down | {"retry": {"attempts": 1}}],
            "workflows": {"paid": [step("well"), step("down", "Go on.", [0]), step("well", "End it.", [1])]},
            "limits": {"first_byte_s": 10},
        }
        async with served(settings) as api:
            unpaid = await api.http.post(path, json=body | {"model": "down"})
            paid = await api.http.post(path, json=body | {"model": "paid"})
    failed = "down failed because of an error at its provider."
    assert (unpaid.headers["x-should-retry"], paid.headers["x-should-retry"]) == ("true", "false")
    assert unpaid.json()["error"]["message"] == f"{failed} Try again."
    assert paid.json()["error"]["message"] == f"{failed} A new request is billed again."


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses", "/v1/messages"])
async def test_a_stream_broken_after_billed_tokens_does_not_suggest_a_retry(path: str):
    body: Json = {"model": "a", "stream": True} | (
        {"input": "Why?"} if path == "/v1/responses" else {"messages": ASK["messages"], "max_tokens": 50}
    )
    async with serving(OpenAIWire()) as upstream:
        upstream.respond = lambda _: Answer(pause_after=MIDDLE, cut_after=MIDDLE)
        worker: Json = {"name": "a", "kind": "openai", "model": "m", "base_url": f"{upstream.url}/v1"}
        async with served({"workers": [worker | {"price": PRICE, "retry": {"attempts": 1}}]}) as api:
            said_of_it = (await api.http.post(path, json=body)).text
    assert "A new request is billed again." in said_of_it
    assert "Try again" not in said_of_it
