"""Limits of requests and tokens per minute, as clients see them."""

from pathlib import Path
from typing import Any

import openai
import pytest

from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, PRICE, scripted, team
from tests.serving.api.test_policies import ask, limit
from tests.serving.api.tool_caller import tool_caller
from tests.states import until

SETTINGS = team(workers=[scripted("a", "word " * 50, price=PRICE)], workflows={})


async def test_responses_state_the_rates_and_beyond_them_return_429(tmp_path: Path) -> None:
    async with keyed(tmp_path, SETTINGS) as it:
        await limit(it, "keys", "mine", requests_per_minute=2, tokens_per_minute=10_000)
        for stream, remaining in ((False, "1"), (True, "0")):
            answer = await ask(it, model="a", stream=stream)
            assert answer.status_code == 200
            assert answer.headers["x-ratelimit-limit-requests"] == "2"
            assert answer.headers["x-ratelimit-remaining-requests"] == remaining
            assert int(answer.headers["x-ratelimit-remaining-tokens"]) < 10_000
            assert answer.headers["x-ratelimit-reset-requests"].endswith("s")
        client = it.api.openai(it.secrets["mine"])
        with pytest.raises(openai.RateLimitError) as caught:
            await client.chat.completions.create(**(ASK | {"model": "a"}))
        refused: Any = caught.value
        assert (refused.code, refused.type) == ("rate_limit_exceeded", "rate_limit_error")
        assert 1 <= int(refused.response.headers["retry-after"]) <= 61
        assert refused.response.headers["x-ratelimit-remaining-requests"] == "0"
        assert refused.response.headers["x-should-retry"] == "true"
        assert len(it.api.worker("a").calls) == 2
        free = await ask(it, "only run", model="a")
        assert (free.status_code, "x-ratelimit-limit-requests" in free.headers) == (200, False)


async def test_tokens_of_all_calls_count_but_none_of_rejected_requests(
    tmp_path: Path,
) -> None:
    async with keyed(tmp_path, SETTINGS) as it:
        await limit(it, "teams", "search", tokens_per_minute=1200)
        wrong = await ask(it, model="nobody", max_tokens=1000)
        assert wrong.status_code == 404
        first = await ask(it, model="a", max_tokens=400)
        used = first.json()["usage"]["total_tokens"]
        await until(lambda: it.api.service.sessions.is_idle, "the first one is settled")
        assert 50 < used < 100
        response = await ask(it, "only run", model="a", max_tokens=1000)
        assert response.status_code == 200  # the first one was estimated at 400
        await until(lambda: it.api.service.sessions.is_idle, "the second one is settled")
        remaining = int((await ask(it, model="a", max_tokens=10)).headers["x-ratelimit-remaining-tokens"])
        assert 1200 - 4 * used < remaining < 1200 - 2 * used


async def test_tokens_of_a_run_continued_with_tool_results_count(tmp_path: Path) -> None:
    settings = team(workers=[tool_caller("a", [["clock"]])], workflows={})
    async with keyed(tmp_path, settings) as it:
        await limit(it, "keys", "mine", tokens_per_minute=10_000)
        tools = [{"type": "function", "function": {"name": "clock"}}]
        messages: Any = [{"role": "user", "content": "Hello"}]

        response = await ask(it, model="a", messages=messages, tools=tools)
        message = response.json()["choices"][0]["message"]
        messages += [
            message,
            {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "noon"},
        ]
        answer = await ask(it, model="a", messages=messages, tools=tools)
        used = sum(each.json()["usage"]["total_tokens"] for each in (response, answer))
        await until(lambda: it.api.service.sessions.is_idle, "both are settled")
        later = await ask(it, model="a", messages=[{"role": "user", "content": "Bye"}], max_tokens=1)
        spent = 10_000 - int(later.headers["x-ratelimit-remaining-tokens"])
        assert used < spent < used + 20


@pytest.mark.parametrize(
    ("path", "body", "param", "limit_name"),
    [
        ("/v1/chat/completions", ASK | {"n": 4}, "n", "requests_per_minute"),
        ("/v1/chat/completions", ASK | {"n": 4, "stream": True}, "n", "requests_per_minute"),
        ("/v1/completions", {"prompt": ["a", "b", "c", "d"]}, "prompt", "requests_per_minute"),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, "n", "requests_per_minute"),
        ("/v1/chat/completions", ASK | {"n": 2, "max_tokens": 4000}, "n", "tokens_per_minute"),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 4000}, "prompt", "tokens_per_minute"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": 30_000 * "x"}]}, "tokens_per_minute", "tokens_per_minute"),
        ("/v1/responses", {"input": 30_000 * "x"}, "tokens_per_minute", "tokens_per_minute"),
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": 30_000 * "x"}]}, "tokens_per_minute", "tokens_per_minute"),
        ("/v1/plans", {"messages": [{"role": "user", "content": 30_000 * "x"}]}, "tokens_per_minute", "tokens_per_minute"),
    ],
)  # fmt: skip
async def test_a_request_over_a_whole_minutes_limit_returns_400_and_consumes_nothing(
    path: str, body: Any, param: str | None, limit_name: str, tmp_path: Path
) -> None:
    async with keyed(tmp_path, SETTINGS) as it:
        await limit(it, "keys", "mine", requests_per_minute=3, tokens_per_minute=5_000)
        for _ in range(2):
            answer = await it.ask("mine", "POST", path, body | {"model": "a"})
            assert answer.status_code == 400, answer.text
            error = answer.json()["error"]
            assert error.get("param", param) == param
            assert limit_name in error["message"]
            assert "retry-after" not in answer.headers
        assert not it.api.worker("a").calls
        fits = await ask(it, model="a", n=3, max_tokens=100)
        assert fits.status_code == 200, "all of the minute was left"
