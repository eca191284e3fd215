"""Two workers break off in the middle of an answer, and a third completes it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from serving.dispatch import target
from tests.serving.api.served import ASK, Json, Served, answer_text, parsed, scripted, served, step
from tests.states import until
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, Request, WireServer, serving

TEXT = "one two three four five six seven eight nine ten eleven twelve"
KINDS = ("fallbacks", "deployments")


def answering(*, breaks: bool) -> Callable[[Request], Answer]:
    """Return a responder that continues the beginning of the answer, if the request has one."""

    def respond(request: Request) -> Answer:
        last = request.body["messages"][-1]
        rest = TEXT.removeprefix(last["content"]) if last["role"] == "assistant" else TEXT
        return Answer(text=rest, end_after=4 if breaks else None)

    return respond


def settings_of(kind: str, urls: list[str]) -> Json:
    """Return settings with a worker `a` at these addresses, in this order."""
    wire = {"kind": "openai", "model": "m", "accepts": {"prefill": True}}
    wire |= {"retry": {"attempts": 1}, "price": {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}}
    if kind == "fallbacks":
        names = "abc"[: len(urls)]
        workers = [wire | {"name": n, "base_url": f"{url}/v1"} for n, url in zip(names, urls, strict=True)]
        workers[0] |= {"fallbacks": list(names[1:])}
    else:
        places = [{"name": f"d{n}", "base_url": f"{url}/v1"} for n, url in enumerate(urls)]
        workers = [wire | {"name": "a", "deployments": places}]
    steps = [step("first"), step("a", "Go on.", [0]), step("last", "End it.", [1])]
    others = [scripted("first", "A start."), scripted("last", "Whole.")]
    return {"workers": [*workers, *others], "workflows": {"three": steps}}


@asynccontextmanager
async def chain(kind: str, *breaks: bool) -> AsyncGenerator[tuple[Served, list[WireServer]]]:
    async with AsyncExitStack() as opened:
        servers = [await opened.enter_async_context(serving(OpenAIWire())) for _ in breaks]
        for server, does in zip(servers, breaks, strict=True):
            server.respond = answering(breaks=does)
        settings = settings_of(kind, [server.url for server in servers])
        api = await opened.enter_async_context(served(settings))
        yield api, servers
        await api.service.pool.aclose()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_continues_with_the_third_worker(kind: str):
    async with chain(kind, True, True, False) as (api, servers):
        answer = await api.http.post("/v1/chat/completions", json=ASK | {"model": "a", "stream": True})
        assert answer_text(parsed(answer.text)) == TEXT
        n_requests = [len(server.requests) for server in servers]
        # deployments are chosen at random, so the working one may be the first or second
        assert n_requests == [1, 1, 1] if kind == "fallbacks" else max(n_requests) == 1
        (step_json,) = (await api.newest())["steps"]
        outcomes = [
            attempt["outcome"] for attempt in step_json["attempts"] if attempt["outcome"] != "left_alone"
        ]
        assert outcomes == ["cut"] * (sum(n_requests) - 1)


@pytest.mark.parametrize("model", ["a", "three"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_unseen_answer_restarts_until_the_third_worker(kind: str, model: str):
    async with chain(kind, True, True, False) as (api, servers):
        answer = await api.ok({"model": model})
        record = await api.newest()
        step_json = record["steps"][0 if model == "a" else 1]
        assert (answer["choices"][0]["message"]["content"], step_json["output"]) == (
            TEXT if model == "a" else "Whole.",
            TEXT,
        )
        assert max(len(server.requests) for server in servers) == 1
        if kind == "deployments":
            places = [attempt["deployment"] for attempt in step_json["attempts"]]
            assert len(set(places)) == len(places) == sum(len(server.requests) for server in servers) - 1


async def test_if_all_workers_break_off_the_error_says_what_is_missing():
    async with chain("fallbacks", True, True, True) as (api, servers):
        answer = await api.http.post("/v1/chat/completions", json=ASK | {"model": "a", "stream": True})
        (error,) = [each["error"] for each in parsed(answer.text) if "error" in each]
        assert "the rest is missing" in error["message"]
        assert TEXT.startswith(answer_text(parsed(answer.text)))
        assert [len(server.requests) for server in servers] == [1, 1, 1]
        whole = await api.http.post("/v1/chat/completions", json=ASK | {"model": "a"})
        assert whole.status_code == 400
        assert [len(server.requests) for server in servers] == [2, 2, 2]


async def test_a_worker_that_broke_off_this_answer_is_skipped_with_that_reason():
    async with chain("fallbacks", True, False) as (api, _):
        await api.ok({"model": "a"})
        (step_json,) = (await api.newest())["steps"]
    skipped_attempt = next(attempt for attempt in step_json["attempts"] if attempt["outcome"] == "left_alone")
    assert (
        skipped_attempt["message"]
        == "a was skipped because it stopped in the middle of an answer to this call."
    )


@pytest.mark.parametrize("kind", KINDS)
async def test_an_unusually_long_pause_ends_the_call_and_another_worker_continues(
    kind: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(target, "LEAST_PAUSE_S", 0.3)
    monkeypatch.setattr(target, "KNOWN_CALLS", 0)

    def silent(_: Request) -> Answer:
        return Answer(text=TEXT, stall_after=4)

    async with chain(kind, False, False) as (api, servers):
        for server in servers:
            server.respond = silent
        asking = asyncio.create_task(
            api.http.post("/v1/chat/completions", json=ASK | {"model": "a", "stream": True})
        )
        await until(lambda: any(server.requests for server in servers), "one was asked")
        for server in servers:
            if not server.requests:
                server.respond = answering(breaks=False)
        assert answer_text(parsed((await asking).text)) == TEXT
        (step_json,) = (await api.newest())["steps"]
        assert [attempt["outcome"] for attempt in step_json["attempts"]].count("cut") == 1
