"""Servers that break below the wire. Each fault must soon become `WorkerUnavailable` in all three HTTP workers."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from conductor.errors import WorkerError, WorkerRefused, WorkerUnavailable
from tests.serving.workers.test_http import CALL, PROVIDERS, Provider, failing
from tests.states import until
from tests.wires.faults import (
    BROKEN_FRAMING,
    COMMENTS,
    NOT_HTTP,
    SILENT,
    Fault,
    faulty,
)
from tests.wires.server import Answer, serving

Ask = Callable[[], Awaitable[tuple[WorkerError, str]]]
STALL_S = 0.5
SOON_S = 10.0
"""Generous, because a test machine may be busy. Without a limit, each of these would hang."""


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


def first_words(provider: Provider) -> bytes:
    return b"".join(provider.wire.events(Answer(text="a b c d"))[: provider.first_word + 2])


@asynccontextmanager
async def playing(provider: Provider, fault: Fault, stall_s: float = STALL_S) -> AsyncIterator[Ask]:
    """Yield a function that calls a worker whose server plays `fault`. It returns the error and the text before it."""
    async with faulty(fault, first_words(provider)) as server:
        worker = provider.make(server.url, stall_timeout_s=stall_s)

        async def ask() -> tuple[WorkerError, str]:
            texts: list[str] = []

            async def listen() -> None:
                async with worker.open(CALL) as reply:
                    async for delta in reply:
                        texts.append(delta.text)
                        server.heard.set()

            with pytest.raises(WorkerError) as caught:
                await asyncio.wait_for(listen(), SOON_S)
            if not fault.keeps_alive:
                await until(lambda: server.open_connections == 0)
            assert server.requests <= 1, "the SDK asked again by itself"
            return caught.value, "".join(texts)

        yield ask
        await worker.aclose()


async def outcomes(provider: Provider, faults: dict[str, Fault]) -> dict[str, tuple[type, str]]:
    async with AsyncExitStack() as stack:
        asks = [await stack.enter_async_context(playing(provider, fault)) for fault in faults.values()]
        results = await asyncio.gather(*(ask() for ask in asks))
    return {name: (type(error), text) for name, (error, text) in zip(faults, results, strict=True)}


async def test_a_response_that_is_not_http_is_unavailable(provider: Provider):
    assert await outcomes(provider, NOT_HTTP) == dict.fromkeys(NOT_HTTP, (WorkerUnavailable, ""))


async def test_slow_headers_end_with_the_stall_timeout(provider: Provider):
    assert await outcomes(provider, SILENT) == dict.fromkeys(SILENT, (WorkerUnavailable, ""))


@pytest.mark.parametrize("speaks", [False, True])
async def test_broken_framing_is_unavailable_before_and_after_the_first_token(
    provider: Provider, speaks: bool
):
    faults = {name: Fault(speaks=speaks, tail=tail) for name, tail in BROKEN_FRAMING.items()}
    assert await outcomes(provider, faults) == dict.fromkeys(
        faults, (WorkerUnavailable, "a b" if speaks else "")
    )


@pytest.mark.parametrize("speaks", [False, True])
async def test_sse_comments_are_not_output(provider: Provider, speaks: bool):
    faults = {name: Fault(speaks=speaks, drips=drip) for name, drip in COMMENTS.items()}
    assert await outcomes(provider, faults) == dict.fromkeys(
        faults, (WorkerUnavailable, "a b" if speaks else "")
    )


async def test_a_broken_frame_does_not_wait_for_the_stall_timeout(provider: Provider):
    """aiohttp's parser closes the connection without notifying the reader."""
    async with playing(provider, Fault(speaks=True, tail=b"zz\r\n"), stall_s=60) as ask:
        error, text = await ask()
    assert (type(error), text) == (WorkerUnavailable, "a b")


async def test_sse_comments_between_tokens_are_ignored(provider: Provider):
    """Comments are skipped before the first word and between words, while words arrive in time."""
    events = [event for each in provider.wire.events(Answer(text="a b c")) for event in (b": ping\n\n", each)]
    async with provider(Answer(instead=tuple(events))) as (worker, _), worker.open(CALL) as reply:
        assert "".join([delta.text async for delta in reply]) == "a b c"


async def test_a_slow_reader_does_not_trigger_the_stall_timeout(provider: Provider):
    texts: list[str] = []
    async with (
        provider(Answer(text="a b c d"), stall_timeout_s=STALL_S) as (worker, _),
        worker.open(CALL) as reply,
    ):
        async for delta in reply:
            texts.append(delta.text)
            if len(texts) == 1:
                await asyncio.sleep(2 * STALL_S)
    assert "".join(texts) == "a b c d"


async def test_silence_after_the_finish_reason_does_not_break_the_answer(provider: Provider):
    events = provider.wire.events(Answer(text="a b"))
    finish_at = next(i for i, e in enumerate(events) if b'"stop"' in e or b"end_turn" in e or b"STOP" in e)
    comments = (b": ping\n\n",) * 3
    answer = Answer(instead=(*events[: finish_at + 1], *comments), stall_after=finish_at + 1)
    async with provider(answer, stall_timeout_s=STALL_S) as (worker, _), worker.open(CALL) as reply:
        assert "".join([delta.text async for delta in reply]) == "a b"


async def test_a_redirect_is_not_followed(provider: Provider):
    async with serving(provider.wire) as other:
        for status in (307, 308, 302, 301):
            head = f"HTTP/1.1 {status} Elsewhere\r\nlocation: {other.url}/v1\r\ncontent-length: 0\r\n\r\n"
            async with playing(provider, Fault(head.encode(), keeps_alive=True)) as ask:
                error, _ = await ask()
            assert type(error) is WorkerRefused
            assert "base_url" in error.detail
            assert other.url in error.detail
        assert other.requests == []


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_mismatched_tls_is_unavailable(provider: Provider, scheme: str):
    """A plain server that gets a TLS request, and one that answers a plain request with a TLS alert."""
    async with faulty(NOT_HTTP["a TLS alert"]) as server:
        worker = provider.make(server.url.replace("http", scheme), stall_timeout_s=STALL_S)
        error = await asyncio.wait_for(failing(worker), SOON_S)
        await worker.aclose()
    assert type(error) is WorkerUnavailable


async def test_a_reset_in_mid_stream_logs_no_traceback(provider: Provider, caplog: pytest.LogCaptureFixture):
    """asyncio logs the error of a future that was never awaited when the future is collected."""
    gc.collect()  # left over from earlier tests
    caplog.clear()
    async with provider(Answer(), Answer(text="a b c d", cut_after=provider.first_word + 2)) as (worker, _):
        async with worker.open(CALL) as reply:
            assert [delta async for delta in reply]
        await failing(worker)
    gc.collect()
    await asyncio.sleep(0)
    assert [each.getMessage() for each in caplog.records if each.name == "asyncio"] == []
