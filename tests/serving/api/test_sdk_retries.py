"""Retries of the official SDK with its defaults, against a permanent fault: which workers are called, and how often."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai
import pytest

from tests.serving.api.served import Json, Served, plan, scripted, served, step, team
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving

QUESTION: list[Any] = [{"role": "user", "content": "Why is the sky blue?"}]
BAD_KEY = Answer(status=401, error="Incorrect API key provided.", error_code="invalid_api_key")
BAD_PARAMETER = Answer(
    status=400, error="Unsupported value: 'temperature' does not support 0.2 with this model."
)
NO_MODEL = Answer(status=404, error="The model does not exist.")
NO_CREDIT = Answer(status=429, error="You exceeded your current quota.", error_code="insufficient_quota")
LASTING = {"bad key": BAD_KEY, "bad parameter": BAD_PARAMETER, "no model": NO_MODEL, "no credit": NO_CREDIT}


@dataclass
class Account:
    """A provider that gives every model the same answer and counts calls."""

    upstream: WireServer
    api: Served
    requests: int = 0
    """Number of requests that reached Podium."""

    @property
    def calls(self) -> dict[str, int]:
        return dict(Counter(request.body["model"] for request in self.upstream.requests))

    async def ask(self, model: str = "mini", *, stream: bool = False, **podium: Any) -> str:
        """Send a request with the SDK's own two retries. Return the answer or the error code."""

        async def count(_: Any) -> None:
            self.requests += 1

        http = openai.DefaultAsyncHttpxClient(event_hooks={"request": [count]})
        async with openai.AsyncOpenAI(base_url=f"{self.api.url}/v1", api_key="none", http_client=http) as sdk:
            assert sdk.max_retries == 2
            try:
                answer: Any = await sdk.chat.completions.create(
                    model=model,
                    messages=QUESTION,
                    stream=stream,
                    temperature=0.2,
                    extra_body={"podium": podium},
                )
                if stream:
                    return "".join([c.choices[0].delta.content or "" async for c in answer if c.choices])
            except openai.APIError as exc:
                return str(exc.code)
            return answer.choices[0].message.content


def remote(name: str, url: str, **settings: Any) -> Json:
    return {"name": name, "kind": "openai", "model": name, "base_url": f"{url}/v1"} | settings


@asynccontextmanager
async def account(fault: Answer, *plans: str, conductor: str = "", **settings: Any) -> AsyncIterator[Account]:
    """Serve a team of `paid`, which answers, and two workers of one account whose calls always fail.

    Args:
        fault: answer to every call.
        plans: plans of the conductor.
        conductor: name of another conductor.
        settings: settings of `faulty`.
    """
    async with serving(OpenAIWire(), *[fault] * 50) as upstream:
        workers = [
            scripted("paid", "A reason."), remote("faulty", upstream.url, **settings), remote("sibling", upstream.url),
        ]  # fmt: skip
        server_settings = team(*plans, workers=workers, workflows={}, limits={"first_byte_s": 10})
        if conductor:
            server_settings["workers"].append(remote("leader", upstream.url, in_pool=False))
            server_settings["conductor"] = {"worker": conductor, "fallback": "faulty"}
        async with served(server_settings) as api:
            yield Account(upstream, api)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
async def test_a_worker_that_refuses_is_called_once(fault: Answer, stream: bool) -> None:
    async with account(fault) as it:
        assert await it.ask("faulty", stream=stream) == "worker_refused"
    assert (it.calls, it.requests) == ({"faulty": 1}, 1)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", LASTING.values(), ids=LASTING)
async def test_completed_steps_of_a_plan_are_not_repeated(fault: Answer, stream: bool) -> None:
    paid = plan(step("paid"), step("faulty", "Conclude.", [0]))
    async with account(fault, paid) as it:
        assert await it.ask(stream=stream) == "worker_refused"
        assert [len(it.api.worker(name).calls) for name in ("conductor", "paid")] == [1, 1]
    assert (it.calls, it.requests) == ({"faulty": 1}, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_after_a_refused_one_uses_the_fallback_immediately(stream: bool) -> None:
    twice = plan(step("faulty", "Draft."), step("faulty", "Polish.", [0]))
    async with account(BAD_KEY, twice, fallbacks=["paid"]) as it:
        assert await it.ask(stream=stream) == "A reason."
        record = await it.api.newest()
    assert (it.calls, it.requests) == ({"faulty": 1}, 1)
    assert [each["served_by"] for each in record["steps"]] == ["paid", "paid"]
    (passed_by,) = record["steps"][1]["attempts"]
    assert (passed_by["worker"], passed_by["outcome"]) == ("faulty", "left_alone")


async def test_a_fallback_that_refuses_is_called_once() -> None:
    async with account(BAD_KEY, plan(step("faulty")), fallbacks=["sibling"]) as it:
        assert await it.ask() == "worker_refused"
    assert (it.calls, it.requests) == ({"faulty": 1, "sibling": 1}, 1)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conductor_and_workers_of_one_account_are_called_once_each(stream: bool) -> None:
    async with account(BAD_KEY, conductor="leader") as it:
        assert await it.ask(stream=stream, rounds=3) == "A reason."
    assert (it.calls, it.requests) == ({"leader": 1, "faulty": 1}, 1)
    async with account(BAD_KEY, conductor="leader") as it:
        assert await it.ask(stream=stream, workers=["faulty", "sibling"]) == "worker_refused"
    assert (it.calls, it.requests) == ({"leader": 1, "faulty": 1, "sibling": 1}, 1)


async def test_a_conductor_with_a_bad_key_is_not_called_as_a_worker() -> None:
    async with account(BAD_KEY, conductor="faulty") as it:
        assert await it.ask(workers=["faulty"]) == "worker_refused"
    assert (it.calls, it.requests) == ({"faulty": 1}, 1)


async def test_a_conductor_that_refuses_to_plan_may_still_answer() -> None:
    async with account(BAD_PARAMETER, conductor="faulty") as it:
        it.upstream.answers.clear()
        it.upstream.answers.append(BAD_PARAMETER)
        assert await it.ask(workers=["faulty"]) == "It is four."
    assert (it.calls, it.requests) == ({"faulty": 2}, 1)


async def test_a_new_run_calls_a_worker_that_refused_before() -> None:
    async with account(BAD_KEY) as it:
        it.upstream.answers.clear()
        it.upstream.answers.append(BAD_KEY)
        assert await it.ask("faulty") == "worker_refused"
        assert await it.ask("faulty") == "It is four."


async def test_the_sdk_still_retries_temporary_faults() -> None:
    async with account(Answer(status=500), retry={"attempts": 1}) as it:
        it.upstream.answers.clear()
        it.upstream.answers.append(Answer(status=500))
        assert await it.ask("faulty") == "It is four."
    assert (it.calls, it.requests) == ({"faulty": 2}, 2)
