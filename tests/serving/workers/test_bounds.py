"""Limits on reading errors, events and compressed bodies of servers, on each wire."""

import asyncio
import gzip
import json
import time
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import cache
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerBusy, WorkerError, WorkerUnavailable
from conductor.model.call import Call, CallSite
from conductor.model.reply import Reply
from serving.workers import event_stream, openai_embeddings, stall_timer
from serving.workers.event_stream import BOM, EventReader, has_more_values
from serving.workers.http_guard import PIECE_BYTES
from serving.workers.provider_account import ProviderAccount
from tests.serving.workers.fuzz_streams import CALL, DIALECTS, Dialect
from tests.serving.workers.subjects import ANY_REQUEST, MODEL, SECRET
from tests.wires.faults import Fault, chunk, faulty
from tests.wires.server import Answer, WireServer, serving, sse

SOON_S = 20.0
"""Generous, because a test machine may be busy. Without a limit, each test would hang or use hundreds of MB."""
MB = 2**20
LITTLE_BYTES = 16 * MB
BOMB_BYTES = 100 * MB
ERROR = b"HTTP/1.1 500 Unhappy\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
GZIP = b"content-encoding: gzip\r\n"
CHUNKED = b"transfer-encoding: chunked\r\n\r\n"
MOST_EMPTY = 5000
EMBED = replace(CALL, site=CallSite(operation="embeddings"))


@pytest.fixture(params=DIALECTS.values(), ids=DIALECTS.keys())
def dialect(request: pytest.FixtureRequest) -> Dialect:
    return request.param


@cache
def bomb(head: bytes) -> bytes:
    """Compress `head` and 100 MB of spaces to about 100 kB."""
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    pieces = [packer.compress(head), *(packer.compress(b" " * MB) for _ in range(BOMB_BYTES // MB))]
    return b"".join(pieces) + packer.flush()


@contextmanager
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < LITTLE_BYTES
    finally:
        tracemalloc.stop()


@asynccontextmanager
async def asking(dialect: Dialect, *answers: Answer) -> AsyncIterator[tuple[Any, WireServer]]:
    async with serving(dialect.wire, *answers) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        yield worker, server
        await worker.aclose()


async def ask(worker: Any, call: Call = CALL) -> tuple[str, Reply]:
    async with asyncio.timeout(SOON_S), worker.open(call) as reply:
        return "".join([delta.text async for delta in reply]), reply


async def failing(dialect: Dialect, fault: Fault, call: Call = CALL) -> WorkerError:
    async with faulty(fault) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        with pytest.raises(WorkerError) as caught:
            await ask(worker, call)
        await worker.aclose()
    return caught.value


async def test_a_compressed_error_is_decompressed_up_to_the_limit(dialect: Dialect):
    packed = bomb(b'{"error": "')
    head = ERROR + GZIP + b"content-length: %d\r\n\r\n" % len(packed)
    with little_memory():
        error = await failing(dialect, Fault(head, tail=packed))
    assert type(error) is WorkerUnavailable
    assert "returned 500" in error.detail


async def test_an_endless_error_body_is_read_up_to_the_limit(dialect: Dialect):
    drip = chunk((b"no " * 300 + b"\n") * 300)
    with little_memory():
        error = await failing(dialect, Fault(ERROR + CHUNKED, drips=drip))
    assert "returned 500: no no" in error.detail


@pytest.mark.parametrize("coding", ["gzip", "br"])
async def test_a_compressed_error_has_the_meaning_of_its_status(dialect: Dialect, coding: str):
    body = gzip.compress(dialect.wire.error_body(Answer(status=429, error="slow down")))
    answer = Answer(status=429, body=body, headers={"content-encoding": coding, "retry-after": "7"})
    async with asking(dialect, answer) as (worker, _):
        with pytest.raises(WorkerBusy) as caught:
            await ask(worker)
    assert caught.value.retry_after_s == 7
    assert ("slow down" in caught.value.detail) == (coding == "gzip")


async def test_an_uncompressed_answer_is_requested_but_a_compressed_one_is_read(dialect: Dialect):
    packed = gzip.compress(b"".join(dialect.wire.events(Answer(text="It is four."))))
    head = EVENTS + GZIP + b"content-length: %d\r\n\r\n" % len(packed)
    async with faulty(Fault(head, tail=packed)) as server:
        worker = dialect.worker(ProviderAccount("w", MODEL, SECRET, server.url + dialect.path))
        assert (await ask(worker))[0] == "It is four."
        await worker.aclose()
    async with asking(dialect) as (worker, server):
        await ask(worker)
    assert server.requests[0].headers["accept-encoding"] == "identity"


async def test_an_unsupported_content_encoding_is_an_error_that_names_it(dialect: Dialect):
    error = await failing(dialect, Fault(EVENTS + b"content-encoding: br\r\ncontent-length: 3\r\n\r\nabc"))
    assert type(error) is WorkerUnavailable
    assert error.message.startswith("w failed. The server sent an answer with the content encoding 'br'")


async def test_a_compressed_event_over_the_limit_is_rejected(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", MB)
    packed = bomb(b"data: ")
    head = EVENTS + GZIP + b"content-length: %d\r\n\r\n" % len(packed)
    with little_memory():
        error = await failing(dialect, Fault(head, tail=packed))
    assert error.message.startswith("w failed. The server sent an event of more than")


@pytest.mark.parametrize("line_end", [b"", b"\n", b"\r", b"\ndata:\n"], ids=["one line", "LF", "CR", "short"])
async def test_an_endless_event_is_rejected(
    dialect: Dialect, line_end: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "MAX_EVENT_BYTES", MB)
    drip = chunk((b"data: " + b"x" * 1000 + line_end) * 100)
    error = await failing(dialect, Fault(EVENTS + CHUNKED, drips=drip))
    assert error.message.startswith("w failed. The server sent an event of more than")


MANY_VALUES = {
    "openai": b'{"choices": [%s]}',
    "responses": b'{"type": "response.created", "response": {"x": [%s]}}',
    "anthropic": b'{"type": "message_start", "message": {"content": [%s]}}',
    "gemini": b'{"candidates": [{"content": {"parts": [%s]}}]}',
}


@pytest.mark.parametrize("name", DIALECTS)
@pytest.mark.parametrize("value", [b"{},", b"[],", b"1,", b'"",'])
async def test_an_event_with_too_many_json_values_is_rejected(name: str, value: bytes):
    """Anthropic's SDK needs 0.2 ms per value and blocks the process meanwhile."""
    event = chunk(sse(MANY_VALUES[name] % (value * 300_000), "message_start"))
    error = await failing(DIALECTS[name], Fault(EVENTS + CHUNKED, tail=event))
    assert error.message.startswith("w failed. The server sent an event of more than")
    assert "values" in error.message


def test_json_characters_inside_a_string_are_one_value():
    words = json.dumps({"a": '{[,"\\ \\" \\\\' * 1000, "b": ["{"]}).encode()
    assert not has_more_values(words, 3)
    assert has_more_values(words, 2)


def test_a_long_event_in_small_chunks_is_parsed_in_linear_time():
    reader, began_s = EventReader(), time.thread_time()
    reader.feed(b"data: ")
    for _ in range(15_000):
        assert not reader.feed(b"x" * 1000)
    (event,) = reader.feed(b"\n\n")
    assert len(event.data) == 15_000_000
    assert time.thread_time() - began_s < 3


async def test_a_byte_order_mark_is_not_part_of_the_first_event(dialect: Dialect):
    first, *others = dialect.signing.events(ANY_REQUEST, 2, ())
    async with asking(dialect, Answer(instead=(first, *others)), Answer(instead=(BOM + first, *others))) as (
        worker,
        _,
    ):
        (text, plain), (same, marked) = await ask(worker), await ask(worker)
    assert (text, plain.usage) == (same, marked.usage) == ("done", plain.usage)


async def test_embeddings_are_read_up_to_the_limit(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(openai_embeddings, "MOST_VECTOR_BYTES", 10_000)
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
    packed = bomb(b"{")
    faults = (
        Fault(head + CHUNKED, drips=chunk(b" " * 1000 + b"\n")),
        Fault(head + GZIP + b"content-length: %d\r\n\r\n" % len(packed), tail=packed),
    )
    for fault in faults:
        with little_memory():
            error = await failing(DIALECTS["openai"], fault, EMBED)
        assert error.message.startswith("w failed. The server sent an answer of more than 50000 bytes")


@pytest.mark.parametrize(
    "empty",
    [
        b"\n",
        b": wait\n",
        b"data:\n\n",
        b"event: x\n\n",
        b"nothing\n",
        b'event: ping\ndata: {"type": "ping"}\n\n',
    ],
    ids=["blank", "comment", "no data", "name", "unknown field", "ping"],
)
@pytest.mark.real_time
async def test_a_flood_of_empty_events_fails_without_blocking_others(
    dialect: Dialect, empty: bytes, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "MOST_EMPTY", MOST_EMPTY)
    monkeypatch.setattr(stall_timer, "MOST_EMPTY", MOST_EMPTY)
    turns = 0

    async def take_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(take_turns())
    # All in one piece, because virtual time stands still.
    flood = Fault(EVENTS + CHUNKED, drips=chunk(empty * (MOST_EMPTY + 100)))
    error = await failing(dialect, flood)
    other.cancel()
    assert type(error) is WorkerUnavailable
    assert error.message.startswith(
        f"w failed. The server sent more than {MOST_EMPTY} events without content."
    )
    assert turns > MOST_EMPTY * len(empty) / PIECE_BYTES


async def test_empty_events_of_any_form_are_counted(dialect: Dialect, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(stall_timer, "MOST_EMPTY", 2000)
    empty = b'data: {"type": "new.thing", "choices": [], "candidates": []}\n\n'
    error = await failing(dialect, Fault(EVENTS + CHUNKED, drips=chunk(empty * 100)))
    assert error.message.startswith("w failed. The server sent more than 2000 events without content.")


async def test_an_answer_may_have_more_events_than_the_limit_of_empty_ones(
    dialect: Dialect, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(event_stream, "MOST_EMPTY", 500)
    monkeypatch.setattr(stall_timer, "MOST_EMPTY", 500)
    text = "word " * 1000
    async with asking(dialect, Answer(text=text)) as (worker, _):
        assert (await ask(worker))[0] == text
