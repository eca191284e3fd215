"""Behaviour that the three HTTP workers share: statuses, broken streams, silence, connections and secret keys."""

import asyncio
import logging
import socket
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from email.utils import formatdate

import httpx2
import pytest
from msgspec.structs import replace

from conductor.errors import ContextOverflow, WorkerBusy, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.failure import Failure
from conductor.model.messages import Image, Message
from conductor.model.reply import FinishReason, Reply
from conductor.model.worker import Worker as AnyWorker
from serving.errors import headers
from serving.settings.known_models import accepts_by_name
from serving.workers.anthropic import AnthropicWorker
from serving.workers.error_meaning import meaning_of
from serving.workers.gemini import GeminiWorker
from serving.workers.http_errors import ErrorMapper, retry_after_s
from serving.workers.openai import OpenAIWorker
from serving.workers.provider_account import ProviderAccount
from serving.workers.scripted import ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route
from tests.serving.workers.subjects import MODEL, SECRET
from tests.wires.anthropic import AnthropicWire
from tests.wires.faults import SILENT, faulty
from tests.wires.gemini import GeminiWire
from tests.wires.openai import OpenAIWire
from tests.wires.server import Answer, WireServer, serving, sse

CALL = Call(messages=(Message.of("user", "What is two and two?"),))
Worker = OpenAIWorker | AnthropicWorker | GeminiWorker


@dataclass(frozen=True)
class Provider:
    wire: OpenAIWire | AnthropicWire | GeminiWire
    worker: type[OpenAIWorker] | type[AnthropicWorker] | type[GeminiWorker]
    path: str = ""
    key_env: str = ""
    first_word: int = 0
    """Number of events before the first word."""

    def make(self, url: str, **settings: float) -> Worker:
        return self.worker(ProviderAccount("w", MODEL, SECRET, url + self.path, **settings))  # type: ignore[arg-type]

    @asynccontextmanager
    async def __call__(self, *answers: Answer, **settings: float) -> AsyncIterator[tuple[Worker, WireServer]]:
        async with serving(self.wire, *answers) as server:
            worker = self.make(server.url, **settings)
            yield worker, server
            await worker.aclose()


PROVIDERS = {
    "openai": Provider(OpenAIWire(), OpenAIWorker, "/v1", "OPENAI_API_KEY", 1),
    "anthropic": Provider(AnthropicWire(), AnthropicWorker, "", "ANTHROPIC_API_KEY", 3),
    "gemini": Provider(GeminiWire(), GeminiWorker, "", "GEMINI_API_KEY", 0),
}


@pytest.fixture(params=PROVIDERS.values(), ids=PROVIDERS.keys())
def provider(request: pytest.FixtureRequest) -> Provider:
    return request.param


async def ask(worker: AnyWorker, call: Call = CALL) -> tuple[str, Reply]:
    async with worker.open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def failing(worker: AnyWorker, call: Call = CALL) -> WorkerError:
    with pytest.raises(WorkerError) as caught:
        await ask(worker, call)
    assert caught.value.worker == "w"
    return caught.value


STATUSES = [
    (400, WorkerRefused), (401, WorkerRefused), (402, WorkerRefused), (403, WorkerRefused), (404, WorkerRefused),
    (408, WorkerUnavailable), (409, WorkerUnavailable), (413, ContextOverflow), (418, WorkerRefused),
    (422, WorkerRefused), (429, WorkerBusy), (500, WorkerUnavailable), (502, WorkerUnavailable),
    (503, WorkerUnavailable), (504, WorkerUnavailable), (529, WorkerBusy),
]  # fmt: skip


async def test_every_status_has_its_error(provider: Provider):
    async with provider(*(Answer(status=status, error="no such thing") for status, _ in STATUSES)) as (
        worker,
        _,
    ):
        for status, error in STATUSES:
            exc = await failing(worker)
            assert (status, type(exc)) == (status, error)
            assert "no such thing" in exc.detail
            assert isinstance(exc.__cause__, Exception)


async def test_a_status_with_a_body_of_html_keeps_its_error(provider: Provider):
    page = b"<html><body>nginx is unhappy</body></html>"
    async with provider(*(Answer(status=status, body=page) for status, _ in STATUSES)) as (worker, _):
        for status, error in STATUSES:
            assert (status, type(await failing(worker))) == (status, error)


async def test_a_503_with_retry_after_is_busy(provider: Provider):
    async with provider(Answer(status=503, headers={"Retry-After": "7"})) as (worker, _):
        exc = await failing(worker)
    assert isinstance(exc, WorkerBusy)
    assert exc.retry_after_s == 7


TOO_LONG = (
    "prompt is too long: 213462 tokens > 200000 maximum",
    "This model's maximum context length is 8192 tokens. However, you requested 9000 tokens.",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "Your input exceeds the context window of this model.",
    "Input length 131393 exceeds the maximum allowed input length of 131040 tokens.",
    "Invalid request: Your request exceeded model token limit: 262144 (requested: 300000)",
    "exceeded model token limit: 262144 (requested: 300000)",
    "Input is too long for requested model.",
    "Range of input length should be [1, 30720]",
    "Prompt exceeds max length",
    "invalid params, context window exceeds limit (2013)",
    "prompt token count of 128345 exceeds the limit of 128000",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 9000 `inputs` tokens",
    "The input (5000 tokens) is longer than the model's context length (4096 tokens).",
    "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 8000",
    "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    "Please reduce the length of the messages or completion.",
    "Please reduce the length of the messages or completion. Current length is 9000 while limit is 8192",
    "This model's maximum prompt length is 131072 but the request contains 537812 tokens.",
    "The decoder prompt (length 5000) is longer than the maximum model length of 4096.",
    "the request exceeds the available context size, try increasing it",
    "request (5000 tokens) exceeds the available context size (4096 tokens)",
    "the number of input tokens 5000 cannot exceed the total tokens limit 4096 for this model",
    "Requested token count exceeds the model's maximum context length of 131072 tokens.",
    "Invalid 'input[0]': maximum input length is 8192 tokens.",
    "Invalid 'messages[0].content': string too long. Expected a string with maximum length 10485760, but got a string with length 12000000 instead.",
    "Invalid 'input': string too long. Expected a string with maximum length 10485760",
    "Total tokens of image and text exceed max message tokens",
    "Trying to keep the first 5000 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens",
    "`inputs` must have less than 512 tokens. Given: 1000",
    "input length exceeds context length",
    "Request too large: 9000 tokens",
    "Conversation too long: 300000 tokens, limit 262144",
    "The total number of tokens in your messages (300000) is over the 262144 limit",
    "Requested tokens (5000) exceed context window of 4096",
    "Token limit exceeded: prompt has 9000 tokens",
    "This model supports at most 8192 tokens of input; 9000 were given",
    "The sequence length 9000 exceeds 8192",
)
TOO_LONG_CODES = (
    "context_length_exceeded",
    "model_max_prompt_tokens_exceeded",
    "exceed_context_size_error",
    "ContextWindowExceededError",
    "prompt_too_long",
    "input_too_long",
    "max_prompt_tokens_exceeded",
)
NOT_TOO_LONG = (
    "Unknown parameter: 'context'.",
    "max_tokens: 5 is too small",
    "temperature is too high",
    "max_tokens is too large: 100000. This model supports at most 16384 completion tokens, whereas you provided 100000.",
    "max_tokens: 100000 > 64000, which is the maximum allowed number of output tokens for claude-x",
    "Invalid 'messages[0].name': string too long. Expected a string with maximum length 64, but got a string with length 80 instead.",
    "Invalid 'tools': array too long. Expected an array with maximum length 128, but got an array with length 130 instead.",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64",
    "Input validation error: `max_new_tokens` must be <= 1024. Given: 5000",
    "Invalid request: max_tokens must be at most 8192 tokens",
    "messages: text content blocks must be non-empty",
    "The request exceeds the maximum number of images (20)",
    "prompt length must be greater than 0",
    "You exceeded your current token quota, request more",
    "Rate limit reached for requests: tokens per min limit 30000",
    "Too many tokens: the limit of 30000 tokens per minute is exceeded",
    "messages.1.content.0.tool_use.id: String should have at most 64 characters",
    "thinking.budget_tokens must be less than max_tokens in the request",
    "max_completion_tokens is too large",
    "Requested max_tokens 9000 exceeds the limit of 8192 output tokens",
    "stop: request has more than 4 stop sequences of any length",
)


async def test_a_400_about_the_context_is_an_overflow_and_others_are_refusals(provider: Provider):
    async with provider(*(Answer(status=400, error=error) for error in (*TOO_LONG, *NOT_TOO_LONG))) as (
        worker,
        _,
    ):
        errors = [type(await failing(worker)) for _ in (*TOO_LONG, *NOT_TOO_LONG)]
    assert errors == [ContextOverflow] * len(TOO_LONG) + [WorkerRefused] * len(NOT_TOO_LONG)


def test_an_overflow_may_have_another_status_or_only_a_code():
    assert [meaning_of(status, TOO_LONG[0], "") for status in (400, 413, 422, 500)] == ["too long"] * 4
    assert [meaning_of(400, "No.", f"{code} invalid_request_error") for code in TOO_LONG_CODES] == [
        "too long"
    ] * len(TOO_LONG_CODES)


async def test_errors_name_the_source_of_keys_and_the_unknown_model(provider: Provider):
    async with provider(Answer(status=401), Answer(status=404)) as (worker, server):
        assert provider.key_env in (await failing(worker)).detail
        detail = (await failing(worker)).detail
    assert MODEL in detail
    assert server.url in detail


async def test_a_key_appears_in_no_message_cause_or_log(provider: Provider, caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.DEBUG)
    text = (
        f"Incorrect API key provided: {SECRET}. Did you mean sk-other-key-987654 or AIzaSyD-some-other-key?"
    )
    answers = [
        Answer(status=401, error=text),
        Answer(status=500, error=text),
        Answer(error_after=1, error=text),
    ]
    async with provider(*answers) as (worker, _):
        for _ in answers:
            message = Failure.of(await failing(worker)).explanation
            assert SECRET not in message
            assert "sk-other" not in message
            assert "AIzaSyD" not in message
    assert SECRET not in caplog.text
    assert SECRET not in repr(vars(worker)["_faults"])


async def test_an_unreachable_server_is_unavailable(provider: Provider):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        worker = provider.make(f"http://127.0.0.1:{unused.getsockname()[1]}")
        started_s = time.monotonic()
        exc = await failing(worker)
        await worker.aclose()
    assert type(exc) is WorkerUnavailable
    assert "base_url" in exc.detail
    assert time.monotonic() - started_s < 1.0, "the SDK tried again by itself"


@pytest.mark.parametrize("events_before", [0, 2])
async def test_silence_is_unavailable_after_the_stall_timeout(provider: Provider, events_before: int):
    error_text = provider.first_word + events_before
    async with provider(Answer(text="a b c d", stall_after=error_text), stall_timeout_s=0.2) as (
        worker,
        server,
    ):
        exc = await failing(worker)
        await asyncio.wait_for(server.requests[-1].hung_up.wait(), 5)
    assert type(exc) is WorkerUnavailable
    assert "stall_timeout_s" in exc.detail


async def test_a_model_that_falls_silent_after_output_is_not_retried(provider: Provider):
    silent = Answer(text="four", stall_after=provider.first_word)
    async with provider(silent, Answer(), stall_timeout_s=1.5) as (worker, server):
        exc = await failing(dispatcher(route(worker, 3)))
        fallback = ScriptedWorker("b", ["Instead."])
        assert (len(server.requests), exc.attempts) == (1, ())
        server.answers.insert(0, silent)
        text, _ = await ask(dispatcher(route(worker, 3), fallback))
    assert headers(exc)["x-should-retry"] == "false"
    assert (text, len(server.requests)) == ("Instead.", 2)


async def test_a_server_that_never_answered_is_retried(provider: Provider):
    async with faulty(next(iter(SILENT.values())), b"") as server:
        worker = provider.make(server.url, stall_timeout_s=0.5)
        exc = await failing(dispatcher(route(worker, 2)))
        await worker.aclose()
    assert len(exc.attempts) == 1
    assert headers(exc)["x-should-retry"] == "true"


@pytest.mark.parametrize(
    ("model", "effort", "stall_timeout_s", "expected_s"),
    [("gpt-5", None, None, 600), ("gpt-5.1", None, None, 120), ("gpt-5.1", "high", None, 600), ("llama", None, None, 120),
     ("gpt-5", "high", 30.0, 30)],
)  # fmt: skip
def test_a_reasoning_call_has_a_longer_stall_timeout(
    model: str, effort: str | None, stall_timeout_s: float | None, expected_s: float
):
    account = ProviderAccount(
        "w", model, "k", stall_timeout_s=stall_timeout_s, accepts=accepts_by_name("openai", model)
    )
    faults = account.faults("OpenAI", "OPENAI_API_KEY", httpx2.URL("http://127.0.0.1"))
    assert account.timer(faults, replace(CALL, sampling=Sampling(effort=effort))).limit_s == expected_s


async def test_an_invalid_json_chunk_is_unavailable_at_any_time(provider: Provider):
    answers = [Answer(garble_after=provider.first_word + events_before) for events_before in (0, 1, 2)]
    async with provider(*answers) as (worker, server):
        for _ in answers:
            assert type(await failing(worker)) is WorkerUnavailable
            await asyncio.wait_for(server.requests[-1].answered.wait(), 5)


SHAPES = (
    b"5",
    b"[]",
    b"null",
    b'"words"',
    b'{"choices": 5}',
    b'{"candidates": 5}',
    b"\xff\xfe",
    b"[" * 100_000,
)


async def test_a_chunk_of_an_unexpected_form_is_unavailable(provider: Provider):
    kinds = (None, "content_block_delta", "message_start")
    answers = [Answer(instead=tuple(sse(content, event=kind) for kind in kinds)) for content in SHAPES]
    async with provider(*answers) as (worker, _):
        errors = [type(await failing(worker)) for _ in SHAPES]
    assert errors == [WorkerUnavailable] * len(SHAPES)


async def test_an_empty_stream_is_unavailable(provider: Provider):
    async with provider(Answer(instead=())) as (worker, _):
        assert type(await failing(worker)) is WorkerUnavailable


async def test_a_stream_without_a_finish_reason_is_unavailable(provider: Provider):
    async with provider(Answer(text="a b c", end_after=provider.first_word + 2)) as (worker, _):
        exc = await failing(worker)
    assert type(exc) is WorkerUnavailable
    assert "finish" in exc.message


async def test_a_cut_after_the_finish_reason_does_not_break_the_answer(provider: Provider):
    answer = Answer(text="a b")
    events = provider.wire.events(answer)
    finish_at = next(i for i, e in enumerate(events) if b'"stop"' in e or b"end_turn" in e or b"STOP" in e)
    async with provider(Answer(text="a b", cut_after=finish_at + 1)) as (worker, _):
        text, reply = await ask(worker)
    assert (text, reply.finish) == ("a b", FinishReason.STOP)


async def test_an_error_inside_the_stream_is_an_error_at_any_time(provider: Provider):
    words = (0, 1, 2)
    answers = [
        Answer(error_after=provider.first_word + count, extra={"type": "api_error"}) for count in words
    ]
    async with provider(*answers) as (worker, _):
        assert [type(await failing(worker)) for _ in words] == [WorkerUnavailable] * 3


@pytest.mark.filterwarnings("ignore:.*is not a valid FinishReason")
async def test_an_unknown_finish_reason_is_an_error(provider: Provider):
    async with provider(Answer(finish="moon_phase")) as (worker, _):
        exc = await failing(worker)
    assert type(exc) is WorkerUnavailable
    assert "moon_phase" in exc.detail.lower()


async def test_consecutive_calls_share_a_connection(provider: Provider):
    async with provider() as (worker, server):
        for _ in range(4):
            await ask(worker)
    assert (server.connections, len(server.requests)) == (1, 4)


async def test_a_worker_works_after_a_failure(provider: Provider):
    answers = [Answer(status=500), Answer(cut_after=2), Answer(garble_after=2), Answer(text="fine")]
    async with provider(*answers) as (worker, _):
        for _ in answers[:-1]:
            await failing(worker)
        assert (await ask(worker))[0] == "fine"


async def test_non_ascii_text_is_streamed_unchanged(provider: Provider):
    text = "Größe \u2028 \u0085 東京 🦜 end"
    async with provider(Answer(text=text)) as (worker, _):
        assert (await ask(worker))[0] == text


async def test_an_invalid_image_is_rejected_before_the_call(provider: Provider):
    call = Call(messages=(Message("user", (Image("data:image/png;base64,%%%"),)),))
    async with provider() as (worker, server):
        assert type(await failing(worker, call)) is WorkerRefused
    assert not server.requests


async def test_a_worker_that_was_closed_is_unavailable(provider: Provider):
    async with provider() as (worker, _):
        await worker.aclose()
        assert type(await failing(worker)) is WorkerUnavailable


async def test_closing_a_worker_ends_its_calls(provider: Provider):
    answer = Answer(text="a b c", stall_after=provider.first_word + 1)
    async with provider(answer) as (worker, server), worker.open(CALL):
        await worker.aclose()
        await asyncio.wait_for(server.requests[-1].hung_up.wait(), 5)


def test_retry_after_may_be_milliseconds_seconds_or_a_date():
    assert retry_after_s({"retry-after-ms": "1500", "retry-after": "9"}) == 1.5
    assert retry_after_s({"retry-after": "2.5"}) == 2.5
    assert retry_after_s({"retry-after": "-4"}) == 0
    in_30_s = retry_after_s({"retry-after": formatdate(time.time() + 30, usegmt=True)})
    assert in_30_s is not None
    assert 25 < in_30_s <= 30
    assert retry_after_s({"retry-after": formatdate(0, usegmt=True)}) == 0
    for nonsense in ("", "soon", "nan", "inf", "Wed, 99 Foo"):
        assert retry_after_s({"retry-after": nonsense}) is None
    assert retry_after_s({}) is None


def test_a_long_error_message_is_shortened_to_one_line():
    faults = ErrorMapper("w", MODEL, "OpenAI", "OPENAI_API_KEY", "http://here", SECRET)
    quoted = faults.quote("no\n\n" + "x" * 5000)
    assert len(quoted) < 400
    assert "\n" not in quoted


async def test_the_cause_of_an_error_prints_no_key(provider: Provider):
    async with provider(Answer(status=401)) as (worker, _):
        exc = await failing(worker)
    assert SECRET not in "".join(traceback.format_exception(exc))
