"""Complete answers, as the load proofs define them, over real sockets."""

import time
from collections import Counter
from collections.abc import AsyncGenerator

import pytest
from aiohttp import ClientSession, web

from loadtest.rig.fake_openai import chunk, event
from loadtest.rig.open_loop import OpenLoopResult, send
from loadtest.rig.routers import ask

WORDS, DONE = chunk("m", {"content": "It is"}), b"data: [DONE]\n\n"
TOO_LONG = event({"error": {"message": "Too many before it.", "code": "line_too_long", "type": "x"}})
STREAMS = {
    "whole": WORDS + DONE,
    "refused late": b": podium\n\n" + TOO_LONG + DONE,
    "broken after words": WORDS + event({"error": {"message": "Gone.", "code": "worker_unavailable"}}) + DONE,
    "cut": WORDS,
    "cut inside an event": WORDS + WORDS[: len(WORDS) // 2],
    "speaks of errors": chunk("m", {"content": '{"error": {"code": "x"}}'}) + DONE,
}


async def _answer(request: web.Request) -> web.Response:
    model = (await request.json())["model"]
    if model in STREAMS:
        return web.Response(body=STREAMS[model], content_type="text/event-stream")
    if model == "refused":
        return web.json_response({"error": {}}, status=429, headers={"retry-after": "2"})
    if model == "busy":
        return web.json_response({"error": {"code": "worker_busy"}}, status=503)
    return web.Response(body=b"<html>", status=502)


@pytest.fixture
async def url() -> AsyncGenerator[str]:
    app = web.Application()
    app.router.add_post("/v1/chat/completions", _answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _load_of(url: str, *models: str) -> OpenLoopResult:
    load = OpenLoopResult(rate=1, seconds=1)
    async with ClientSession() as session:
        for model in models:
            await send(session, url, {"model": model, "stream": True}, time.monotonic(), load)
    return load


async def test_a_stream_that_ends_with_an_error_event_counts_as_that_error(url: str) -> None:
    load = await _load_of(url, "whole", "refused late", "broken after words", "cut", "speaks of errors")
    assert (len(load.took_s), load.goodput) == (2, 2)
    assert load.others == Counter(line_too_long=1, worker_unavailable=1, cut=1)


async def test_errors_are_counted_by_status_and_code_and_a_429_is_a_rejection(url: str) -> None:
    load = await _load_of(url, "refused", "busy", "a proxy's page")
    assert (load.refused, load.n_with_retry_after, load.others) == (
        1,
        1,
        Counter({"503 worker_busy": 1, "502": 1}),
    )


async def test_a_rejection_after_admission_is_not_an_unexpected_fault(url: str) -> None:
    load = await _load_of(url, "whole", "refused", "refused late", "cut")
    assert (load.n, load.odd, load.others_text) == (4, Counter(cut=1), "1 line_too_long, 1 cut")


async def test_a_stream_that_ends_early_is_not_a_clear_error(url: str) -> None:
    async with ClientSession() as session:
        answers = {each: await ask(session, url, each, stream=True) for each in STREAMS}
    assert {each for each, answer in answers.items() if answer.is_whole} == {"whole", "speaks of errors"}
    assert {each: answer.code for each, answer in answers.items() if answer.code} == {
        "refused late": "line_too_long",
        "broken after words": "worker_unavailable",
    }
    assert {each for each, answer in answers.items() if answer.ends_early} == {"cut", "cut inside an event"}
