"""Retries of a failed or interrupted request, on any router: nothing is paid twice, and an interrupted answer is sent
whole.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from serving.database.address import Address
from tests.serving.api.served import Json, Served, plan, scripted, step, team
from tests.serving.store.stores import Replica, replicas
from tests.states import until

WORDS = "one two three four five six seven eight"
QUESTION = [{"role": "user", "content": "Count."}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
BODIES: dict[str, Json] = {
    "/v1/messages": {"model": "mini", "max_tokens": 99, "messages": QUESTION},
    "/v1/responses": {"model": "mini", "input": "Count."},
    "/v1/chat/completions": {"model": "mini", "messages": QUESTION, "tools": [TOOL]},
}


def two_steps(*last: Any, **store: Any) -> Json:
    workers = [scripted("a", "Paid."), scripted("b", *last, tokens_per_s=5)]
    settings = team(plan(step("a"), step("b", access=[0])), workers=workers, workflows={})
    # An early call would use up a reply of the script.
    settings["conversation"] = {"speculation_usd_per_s": None}
    return settings | {"store": store} if store else settings


def calls(*routers: Replica) -> list[int]:
    return [sum(len(each.api.worker(name).calls) for each in routers) for name in ("a", "b")]


async def post(api: Served, path: str, **more: Any) -> httpx2.Response:
    return await api.http.post(path, json=BODIES[path] | more)


async def read_and_leave(api: Served, path: str, **more: Any) -> str:
    """Read until the answer has begun, disconnect, and return the run's id."""
    async with api.http.stream("POST", path, json=BODIES[path] | {"stream": True} | more) as answer:
        async for line in answer.aiter_lines():
            if "one" in line:
                break
        return str(answer.headers["x-podium-workflow-id"])


async def until_joined(router: Replica, run_id: str) -> None:
    """Wait until a retry can join the run. Its router records that once it notices the disconnect."""
    async with asyncio.timeout(10):
        while not await router.rows("SELECT 1 FROM cached_answer WHERE run_id = :id", id=run_id):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("path", BODIES)
async def test_a_billed_failed_run_is_not_repeated_for_client_retries(
    store_address: Address, path: str
) -> None:
    broken: Json = {"text": WORDS, "fail_after_tokens": 2}
    async with replicas(store_address, two_steps(broken, broken)) as (one, other):
        first = await post(one.api, path)
        paid = calls(one, other)
        assert paid == [1, 2]
        for router, stream in ((one, False), (other, False), (other, True), (one, True)):
            again = await post(router.api, path, stream=stream)
            assert again.headers["x-podium-workflow-id"] == first.headers["x-podium-workflow-id"]
            assert first.json()["error"]["message"] in again.text
            assert stream or again.status_code == first.status_code >= 400
        assert calls(one, other) == paid
        assert (await post(one.api, path, temperature=0.5)).headers[
            "x-podium-workflow-id"
        ] not in first.headers.values()
        assert calls(one, other) != paid, "another request is another run"


async def ask_with_sdks(api: Served) -> list[int]:
    """Ask the same question in each dialect with the official SDK and its defaults. Return the final statuses."""
    statuses: list[int] = []
    async with (
        openai.AsyncOpenAI(base_url=f"{api.url}/v1", api_key="none") as sdk,
        anthropic.AsyncAnthropic(base_url=api.url, api_key="none") as claude,
    ):
        assert sdk.max_retries == claude.max_retries == 2
        messages: Any = QUESTION
        for stream in (False, True):
            for ask in (
                sdk.chat.completions.create(model="mini", messages=messages, stream=stream),
                sdk.responses.create(model="mini", input="Count.", stream=stream),
                claude.messages.create(model="mini", max_tokens=99, messages=messages, stream=stream),
            ):
                with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)) as failed:
                    await ask
                statuses.append(failed.value.status_code)
    return statuses


async def ask_with_plain_http(api: Served) -> list[int]:
    """Retry like AI SDK, LlamaIndex and inspect-ai: after certain statuses, four tries in all, ignoring headers."""
    statuses: list[int] = []
    for stream in (False, True):
        for path in ("/v1/chat/completions", "/v1/responses", "/v1/messages"):
            body = {name: value for name, value in BODIES[path].items() if name != "tools"}
            for _ in range(4):
                answer = await api.http.post(path, json=body | {"stream": stream})
                if answer.status_code < 500 and answer.status_code not in (408, 409, 429):
                    break
            statuses.append(answer.status_code)
    return statuses


@pytest.mark.parametrize("ask", [ask_with_sdks, ask_with_plain_http])
async def test_clients_with_default_retries_pay_a_failed_run_once(
    store_address: Address, ask: Callable[[Served], Awaitable[list[int]]]
) -> None:
    down: Json = {"error": "unavailable"}
    settings = two_steps(down) | {"limits": {"first_byte_s": 20}}  # so that streams fail with a status too
    async with replicas(store_address, settings, n=1) as (one,):
        assert await ask(one.api) == [400, 400, 502] * 2
        assert calls(one)[0] == 4, "a chat each, and one of Responses and of Messages, which the stream joins"


@pytest.mark.parametrize("ask", [ask_with_sdks, ask_with_plain_http])
async def test_without_deduplication_clients_still_do_not_pay_twice(
    store_address: Address, ask: Callable[[Served], Awaitable[list[int]]]
) -> None:
    down: Json = {"error": "unavailable"}
    settings = two_steps(down, asked_again_s=0) | {"limits": {"first_byte_s": 20}}
    async with replicas(store_address, settings, n=1) as (one,):
        assert await ask(one.api) == [400, 400, 403] * 2
        assert calls(one)[0] == 6, "one a request"


@pytest.mark.parametrize("path", BODIES)
async def test_an_interrupted_answer_is_returned_whole_to_the_same_request_once(
    store_address: Address, path: str
) -> None:
    async with replicas(store_address, two_steps(WORDS)) as (one, other):
        id = await read_and_leave(one.api, path)
        assert one.api.service.running == 1, "it goes on"
        await until_joined(one, id)
        again = await post(other.api, path)
        assert (again.status_code, again.headers["x-podium-workflow-id"]) == (200, id)
        assert WORDS in again.text
        assert calls(one, other) == [1, 1]
        async with asyncio.timeout(10):  # the delivery is recorded just after the answer
            while (await post(one.api, path)).headers["x-podium-workflow-id"] == id:
                pass
        assert calls(one, other) == [2, 2]


ASKERS = ("metadata", "user", "safety_identifier", "conversation", "previous_response_id", "store")


@pytest.mark.parametrize("field", ASKERS)
async def test_equal_requests_of_another_user_or_conversation_are_separate_runs(
    store_address: Address, field: str
) -> None:
    earlier = ("Before.", "Before.") if field == "previous_response_id" else ()
    async with replicas(store_address, two_steps(*earlier, WORDS), n=1) as (one,):
        anns, bobs = [await body_of(name, field, one.api) for name in ("ann", "bob")]
        id = await read_and_leave(one.api, "/v1/responses", **anns)
        await until_joined(one, id)
        answer = await post(one.api, "/v1/responses", **bobs)
        assert answer.headers["x-podium-workflow-id"] != id
        body, expected_body = answer.json()[field], bobs[field]
        assert body == ({"id": expected_body} if field == "conversation" else expected_body)
        if field == "conversation":
            assert WORDS in (await one.api.http.get(f"/v1/conversations/{expected_body}/items")).text
        else:
            again = await post(one.api, "/v1/responses", **anns)
            assert again.headers["x-podium-workflow-id"] == id


async def body_of(name: str, field: str, api: Served) -> Json:
    """Return a value for `field` that belongs to this user."""
    match field:
        case "metadata":
            return {field: {"user": name}}
        case "conversation":
            return {field: (await api.http.post("/v1/conversations", json={})).json()["id"]}
        case "previous_response_id":
            return {field: (await post(api, "/v1/responses", metadata={"user": name})).json()["id"]}
        case "store":
            return {field: name == "ann"}
        case _:
            return {field: name}


async def test_a_run_continues_without_its_client_only_if_configured(store_address: Address) -> None:
    async with replicas(store_address, two_steps(WORDS, asked_again_s=0), n=1) as (one,):
        id = await read_and_leave(one.api, "/v1/messages")
        await until(lambda: one.api.service.running == 0, "the run has ended with its client")
        assert (await one.api.record(id))["status"] == "cancelled"
        await post(one.api, "/v1/messages")
        assert calls(one) == [2, 2]


async def test_a_plain_chat_is_cancelled_with_its_client_and_its_failure_is_final(
    store_address: Address,
) -> None:
    body: Json = {"model": "mini", "messages": QUESTION, "stream": True}
    broken: Json = {"text": WORDS, "fail_after_tokens": 2}
    async with replicas(store_address, two_steps(WORDS, broken, broken), n=1) as (one,):
        async with one.api.http.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if "one" in line:
                    break
        await until(lambda: one.api.service.running == 0, "the run has ended with its client")
        failed = await one.api.http.post("/v1/chat/completions", json=body | {"stream": False})
        assert (failed.status_code, failed.headers["x-should-retry"]) == (400, "false"), (
            "who reads no header stays away too"
        )
        assert failed.json()["error"]["code"] == "worker_unavailable"


async def test_a_stopping_router_cancels_runs_that_continue_without_a_client(store_address: Address) -> None:
    stuck: Json = {"text": WORDS, "stall_after_tokens": 3}
    async with replicas(store_address, two_steps(stuck), n=1) as (one,):
        id = await read_and_leave(one.api, "/v1/responses")
        await until_joined(one, id)
        await asyncio.wait_for(one.api.service.sessions.aclose(), 5)
        await until(lambda: one.api.service.running == 0, "nothing is left")
        assert (await one.api.record(id))["status"] == "cancelled"
