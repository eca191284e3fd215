"""Fake provider over sockets: both of its APIs, its bill and its accounts."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from aiohttp import ClientSession

from loadtest.rig.cache_provider import CacheProvider
from loadtest.rig.conversations import (
    AGENT_TOOL_TURNS,
    SCENARIOS,
    Client,
    ClientRequest,
    ClientScenario,
    chat,
    replay,
)
from loadtest.rig.prompt_caches import OUTPUT, READ, WRITTEN
from tests.states import until

Json = dict[str, Any]
LONG = "word " * 1200
MARKED = {"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}
CHAT = {"model": "gpt-5", "messages": [{"role": "user", "content": f"conv-7- {LONG}"}]}
MESSAGES = {"model": "claude-sonnet-4-6", "max_tokens": 10, "messages": [{"role": "user", "content": [MARKED]}]}  # fmt: skip


@pytest.fixture
async def session() -> AsyncGenerator[ClientSession]:
    async with ClientSession() as session:
        yield session


async def post(session: ClientSession, url: str, path: str, body: Json, key: str = "a") -> tuple[int, str]:
    async with session.post(url + path, json=body, headers={"x-api-key": key}) as response:
        return response.status, await response.text()


async def test_messages_report_the_billed_tokens(session: ClientSession) -> None:
    provider = CacheProvider()
    async with provider.running() as url:
        whole = json.loads((await post(session, url, "/v1/messages", MESSAGES))[1])
        status, stream = await post(session, url, "/v1/messages", MESSAGES | {"stream": True})
    first, second = provider.calls
    assert whole["usage"]["cache_creation"]["ephemeral_5m_input_tokens"] == first.tokens[WRITTEN] > 1500
    assert status == 200
    assert f'"cache_read_input_tokens": {second.tokens[READ]}' in stream
    assert second.tokens[READ] == first.tokens[WRITTEN]
    assert 12 < first.input_usd / second.input_usd < 13  # 3.75 and 0.3 USD
    assert "event: message_stop" in stream


async def test_chats_report_the_billed_tokens(session: ClientSession) -> None:
    provider = CacheProvider()
    async with provider.running() as url:
        await post(session, url, "/v1/chat/completions", CHAT)
        _, stream = await post(session, url, "/v1/chat/completions", CHAT | {"stream": True})
    first, second = provider.calls
    assert (first.tokens[READ], second.tokens[READ]) == (0, 1408)
    assert f'"prompt_tokens": {second.prompt_tokens}' in stream
    assert '"cached_tokens": 1408' in stream
    assert second.mark == "conv-7-"
    assert second.cost_usd - second.input_usd == second.usd(OUTPUT) > 0


async def test_accounts_have_separate_caches_and_faults(session: ClientSession) -> None:
    provider = CacheProvider()
    async with provider.running() as url:
        for key in ("a", "b"):
            await post(session, url, "/v1/messages", MESSAGES, key)
        provider.failing.add("a")
        statuses = [(await post(session, url, "/v1/messages", MESSAGES, key))[0] for key in ("a", "b")]
    assert [call.tokens[READ] > 0 for call in provider.calls] == [False, False, True]
    assert statuses == [503, 200]


async def test_a_cancelled_call_is_billed_but_not_cached(session: ClientSession) -> None:
    provider = CacheProvider(first_s=1)
    async with provider.running() as url:
        request = asyncio.create_task(post(session, url, "/v1/chat/completions", CHAT))
        await until(lambda: provider.calls)
        request.cancel()
        await post(session, url, "/v1/chat/completions", CHAT)
    cancelled, answered = provider.calls
    assert (cancelled.is_whole, answered.is_whole) == (False, True)
    assert cancelled.input_usd == answered.input_usd > 0
    assert cancelled.tokens[OUTPUT] == 0


async def test_too_many_breakpoints_return_400(session: ClientSession) -> None:
    body = MESSAGES | {"messages": [{"role": "user", "content": [MARKED] * 5}]}
    provider = CacheProvider()
    async with provider.running() as url:
        status, error = await post(session, url, "/v1/messages", body)
    assert (status, provider.calls) == (400, [])
    assert "maximum of 4" in error


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.name)
async def test_a_conversation_has_60_turns_and_keeps_its_cache(
    session: ClientSession, scenario: ClientScenario
) -> None:
    now_s = 0.0
    provider = CacheProvider(tool_turns=AGENT_TOOL_TURNS, clock=lambda: now_s)

    async def send(_: int, request: ClientRequest) -> Json:
        nonlocal now_s
        now_s += request.after_s
        status, text = await post(session, url, scenario.path, {"model": scenario.model, **request.body})
        assert status == 200, text
        return json.loads(text)

    async with provider.running() as url:
        await replay(scenario.client(1), send)
    assert len(provider.calls) == 60
    tokens = sum(call.tokens[READ] for call in provider.calls), sum(c.prompt_tokens for c in provider.calls)
    share = tokens[0] / tokens[1]
    least, most = {"agent": (0.93, 1), "agent-unmarked": (0, 0), "chat": (0.75, 0.95), "document": (0.05, 0.4)}[scenario.name]  # fmt: skip
    assert least <= share <= most


async def test_a_clients_requests_are_deterministic() -> None:
    def bodies(client: Client) -> list[str]:
        answer = {"choices": [{"message": {"content": "Yes."}}]}
        return [json.dumps(next(client).body), *(json.dumps(client.send(answer).body) for _ in range(3))]

    assert bodies(chat(1)) == bodies(chat(1)) != bodies(chat(2))
