"""Requests that are being admitted while new settings replace the pool: its connections stay open for them."""

import asyncio
from contextlib import AbstractAsyncContextManager

import httpx2
import pytest

from conductor.errors import WorkerUnavailable
from conductor.model.call import Call
from conductor.model.reply import Reply
from conductor.model.usage import Price
from serving.accounts.caller import ANONYMOUS
from serving.api.app import build_api
from serving.pool import Pool, build_pool
from serving.sessions.service import Service
from serving.settings.settings import parse
from serving.store.idempotency import Claim
from serving.store.memory_store import MemoryStore
from serving.workers.scripted import ScriptedCall, ScriptedReply, ScriptedWorker
from tests.serving.api.served import Json, left_tasks, served
from tests.states import until

TURNS = 40
"""Turns of the event loop. After so many, each of the requests below has its answer."""
CHAT, MESSAGES = "/v1/chat/completions", [{"role": "user", "content": "hi"}]
TOOL: Json = {"type": "function", "function": {"name": "look"}}


class Closing(ScriptedWorker):
    """Plugin that cannot be called after it was closed, like a client that has connections."""

    is_closed = False

    def __init__(self, name: str, price: Price | None) -> None:
        super().__init__(name, [ScriptedReply(calls=(ScriptedCall("look", "{}"),)), "Yes."])

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        if self.is_closed:
            raise WorkerUnavailable("The client was closed.", worker=self.name, retryable=False)
        return super().open(call)

    async def aclose(self) -> None:
        self.is_closed = True


class SlowlyClosing(ScriptedWorker):
    """Plugin that takes a moment to close, like a client of HTTPS. Worker `a` fails to close."""

    is_closed = False

    def __init__(self, name: str, price: Price | None) -> None:
        super().__init__(name, ["Yes."], delay_s=0.1)

    async def aclose(self) -> None:
        await asyncio.sleep(0.02)
        if self.name == "a":
            raise OSError("It cannot be closed.")
        self.is_closed = True


class SlowStore(MemoryStore):
    """Store whose look-ups take a few turns of the event loop, like those of a database."""

    async def claim(self, claim: Claim) -> Claim:
        await _turns(5)
        return await super().claim(claim)

    async def find_answer(self, owner: str, words: str) -> str | None:
        await _turns(5)
        return await super().find_answer(owner, words)


async def _turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0)


def pool() -> Pool:
    worker = {
        "name": "a",
        "kind": "python",
        "factory": f"{__name__}:Closing",
        "retry": {"attempts": 1},
    }
    return build_pool(parse({"workers": [worker], "cache": {"keep_s": 60}}), {}, {})


def service() -> Service:
    it: list[Service] = []
    it.append(Service(pool(), lambda listener: SlowStore(lambda: it[0].settings().limits, listener)))
    return it[0]


async def answer_of(it: Service, path: str, body: Json, n_turns: int, headers: Json) -> Json:
    """Send a request, replace the pool `n_turns` turns later, and return the answer."""
    old = it.pool.clients
    transport = httpx2.ASGITransport(build_api(it))
    async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
        asking = asyncio.create_task(http.post(path, json={"model": "a"} | body, headers=headers))
        await _turns(n_turns)
        await it.swap(pool())
        answer = await asking
    assert answer.is_success, (n_turns, answer.text)
    await until(lambda: it.running == 0, "the run has ended")
    await until(lambda: all(getattr(each, "is_closed", False) for each in old), "the old pool is closed")
    return answer.json()


REQUESTS: dict[str, tuple[str, Json, Json]] = {
    "a chat": (CHAT, {"messages": MESSAGES, "tools": [TOOL]}, {}),
    "a chat that may be cached": (CHAT, {"messages": MESSAGES, "podium": {"cache": True}}, {}),
    "a keyed chat": (CHAT, {"messages": MESSAGES}, {"idempotency-key": "k"}),
    "several answers": (CHAT, {"messages": MESSAGES, "n": 3}, {}),
    "a background run": ("/v1/responses", {"input": "hi", "background": True}, {}),
    "a plan": (
        "/v1/plans",
        {"messages": MESSAGES, "podium": {"plan": [{"worker": "a", "subtask": "Say it."}]}},
        {},
    ),
}


@pytest.mark.parametrize("kind", REQUESTS)
async def test_a_request_succeeds_whenever_settings_change_during_its_admission(kind: str) -> None:
    path, body, headers = REQUESTS[kind]
    for n_turns in range(TURNS):
        it = service()
        answer = await answer_of(it, path, body, n_turns, headers)
        if kind == "a background run":
            records = await it.store.get("wf_" + answer["id"].removeprefix("resp_")[:32])
            assert records is not None
            assert records.record.status == "finished", (n_turns, records.record.failure)
        await it.pool.aclose()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), [(CHAT, {}), ("/v1/messages", {"max_tokens": 9})])
async def test_every_worker_of_a_replaced_pool_is_closed_after_its_last_answer(
    path: str, body: Json, stream: bool
) -> None:
    factory = f"{__name__}:SlowlyClosing"
    settings = parse({"workers": [{"name": name, "kind": "python", "factory": factory} for name in "abc"]})
    async with served(settings) as api:
        replaced = api.service.pool.clients
        asking = asyncio.create_task(
            api.http.post(path, json={"model": "a", "messages": MESSAGES, "stream": stream} | body)
        )
        await until(lambda: api.service.running == 1, "the request is admitted")
        await api.service.swap(build_pool(settings, {}, {}))
        assert (await asking).status_code == 200
        await until(lambda: [getattr(each, "is_closed", False) for each in replaced] == [False, True, True])


async def test_a_run_continues_whenever_settings_change_during_its_resumption() -> None:
    for n_turns in range(TURNS):
        it = service()
        first_answer = await answer_of(it, CHAT, {"messages": MESSAGES, "tools": [TOOL]}, 0, {})
        message = first_answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "42"}
        turns = [*MESSAGES, message, result]
        answer = await answer_of(it, CHAT, {"messages": turns, "tools": [TOOL]}, n_turns, {})
        assert answer["choices"][0]["message"]["content"] == "Yes."
        await it.pool.aclose()


async def test_a_background_run_survives_a_reload_and_a_disconnect_during_admission() -> None:
    n_runs = 0
    for n_turns in range(TURNS):
        it = service()
        transport = httpx2.ASGITransport(build_api(it))
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as http:
            body = {"model": "a", "messages": MESSAGES, "podium": {"keep": True}}
            asking = asyncio.create_task(http.post(CHAT, json=body, headers={"idempotency-key": "k"}))
            await _turns(n_turns)
            asking.cancel()
            await asyncio.wait([asking])
            await it.swap(pool())
        await until(lambda: not left_tasks(), "the run has ended")
        for run in (await it.newest(10, ANONYMOUS)).runs:
            assert run.record.status == "finished", (n_turns, run.record.failure)
            n_runs += 1
        await it.pool.aclose()
    assert 0 < n_runs < TURNS
