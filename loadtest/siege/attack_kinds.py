"""The attacks. Each is a generator that prepares what it needs, yields once, and then attacks until it is
stopped.

To add an attack, write a function here and add it to `KINDS`.
"""

import asyncio
import json
import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any

from loadtest.siege.attack import REQUEST_ERRORS, Attack

MB = 1_000_000
CHAT = "/v1/chat/completions"
TYPE = "content-type: application/json"
CHUNKED = "transfer-encoding: chunked"
END = b"\r\n"
PERSONAL = "+1 (23) 45-67 call a.b@c.example or DE12 3456 7890 1234 5678 90, x9 4111-1111 "
"""Text with nearly every form of personal data."""
STORED_RUNS = 1000
LIST_AT_ONCE = 32
CHAT_BYTES = 3_900_000
"""Slightly less than `limits.max_text_bytes`."""
UPLOAD_BYTES = 45 * MB
"""Slightly less than `batches.max_file_bytes`."""
RUN_S = 20.0
"""Seconds until an unread run ends. An active run holds its question in memory by design."""
Rows = AsyncGenerator[None]


async def idle(attack: Attack) -> Rows:
    """Open connections and send nothing."""
    yield
    await attack.hold(b"")


async def send_first_byte(attack: Attack) -> Rows:
    """Announce a body and send its first byte."""
    yield
    await attack.hold(attack.head("POST", CHAT, TYPE, "content-length: 1000") + b"\r\n{")


async def large_unfinished(attack: Attack) -> Rows:
    """Send a part of a body that is larger than a proxy's buffer and so reaches the server."""
    yield
    await attack.hold(attack.head("POST", CHAT, TYPE, "content-length: 1000000") + b"\r\n" + b"{" * 40_000)


async def headers(attack: Attack) -> Rows:
    """Send one header of 100 MB."""
    head = attack.head("POST", CHAT, TYPE) + b"x-long: "
    yield
    await attack.repeat(lambda: attack.send([head, *repeat(b"a" * MB, 100), END * 2]))


async def prompts(attack: Attack) -> Rows:
    """Send a prompt of 19 MB of words."""
    request = attack.chat("quick", "word " * (19 * MB // 5))
    yield
    await attack.repeat(lambda: attack.send([request]))


async def event_streams(attack: Attack) -> Rows:
    """Open event streams of one run, with a key that may only read runs."""
    run = await start_run(attack)
    yield
    await attack.hold(attack.head("GET", f"/v1/workflows/{run}/events", key="reader") + END)


async def trailers(attack: Attack) -> Rows:
    """Send 200 MB of trailers after a small body, without a key. Some are long, others tiny."""
    head = attack.head("POST", CHAT, TYPE, CHUNKED) + b"\r\n2\r\n{}\r\n0\r\n"
    pieces = cycle([(b"x-long: " + b"a" * 7_990 + END) * 125, b"a: b\r\n" * 160_000])
    yield
    await attack.repeat(lambda: attack.send([head, *repeat(next(pieces), 200), END]))


async def endless_trailer(attack: Attack) -> Rows:
    """Send one trailer of 500 MB, without a key."""
    head = attack.head("POST", CHAT, TYPE, CHUNKED) + b"\r\n2\r\n{}\r\n0\r\nx-long: "
    yield
    await attack.repeat(lambda: attack.send([head, *repeat(b"a" * MB, 500), END * 2]))


async def trailer_credentials(attack: Attack) -> Rows:
    """Send the key only in a trailer, which must not authenticate the request."""
    body = json.dumps({"model": "quick", "messages": [{"role": "user", "content": "Why?"}]}).encode()
    head = attack.head("POST", CHAT, TYPE, CHUNKED) + b"\r\n%x\r\n%b\r\n0\r\n" % (len(body), body)
    trailer = f"authorization: Bearer {attack.orders.keys.get('attacker', '')}\r\n\r\n".encode()

    async def ask() -> None:
        if await attack.send([head, trailer]) == 200:
            attack.breach("The server accepted a key that was sent as a trailer.")

    yield
    await attack.repeat(ask)


async def http2(attack: Attack) -> Rows:
    """Send 100 unfinished requests on each connection, in HTTP/2 without TLS and without a key."""

    def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    authority = f"{attack.orders.host}:{attack.orders.port}"
    lines = {
        ":method": "POST", ":scheme": "http", ":path": CHAT, ":authority": authority,
        "content-type": "application/json", "content-length": "1000",
    }  # fmt: skip
    block = b"".join(
        b"\0" + bytes([len(name)]) + name.encode() + bytes([len(text)]) + text.encode()
        for name, text in lines.items()
    )
    streams = b"".join(frame(1, 4, 2 * number + 1, block) for number in range(100))
    yield
    await attack.hold(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(4, 0, 0) + streams)


async def newlines(attack: Attack) -> Rows:
    """Upload 45 MB of newlines."""
    yield
    await attack.repeat(lambda: attack.send(upload(attack, repeat(b"\n" * MB, UPLOAD_BYTES // MB))))


async def long_lines(attack: Attack) -> Rows:
    """Upload a batch file of one 46 MB line, with a key whose texts are redacted."""
    content = PERSONAL * (46 * MB // len(PERSONAL))
    line = batch_line(content)
    yield
    await attack.repeat(lambda: attack.send(upload(attack, [line], key="redacting")))


async def personal_chats(attack: Attack) -> Rows:
    """Send chats of 3.9 MB, with a key whose texts are redacted."""
    request = attack.chat("quick", PERSONAL * (CHAT_BYTES // len(PERSONAL)), key="redacting")
    yield
    await attack.repeat(lambda: attack.send([request]))


async def openapi(attack: Attack) -> Rows:
    """Read the API description repeatedly."""
    yield
    await keep_reading(attack, "/v1/openapi.json")


async def lists(attack: Attack) -> Rows:
    """Read lists of 1,000 runs repeatedly."""
    chat = attack.chat("quick", "Why?")
    for _ in range(0, STORED_RUNS, LIST_AT_ONCE):
        await asyncio.gather(*(attack.prepare(chat) for _ in range(LIST_AT_ONCE)))
    yield
    await keep_reading(attack, f"/v1/workflows?limit={STORED_RUNS}")


async def large_counts(attack: Attack) -> Rows:
    """Count the tokens of prompts with a 19 MB picture."""
    picture = {"type": "base64", "media_type": "image/png", "data": "iVBORw0K" * (19 * MB // 8)}
    content = [{"type": "image", "source": picture}]
    body = {"model": "quick", "messages": [{"role": "user", "content": content}]}
    request = attack.post("/v1/messages/count_tokens", json.dumps(body).encode(), key="attacker")
    yield
    await attack.repeat(lambda: attack.send([request]), pause_s=0)


async def large_records(attack: Attack) -> Rows:
    """Read the record of a run with a 3 MB question repeatedly."""
    run = await start_run(attack, "quick", "word " * (3 * MB // 5))
    yield
    await keep_reading(attack, f"/v1/workflows/{run}")


async def unread_downloads(attack: Attack) -> Rows:
    """Request a 20 MB file without reading the response."""
    uploaded = await attack.prepare(b"".join(upload(attack, repeat(batch_line("a" * MB), 20))))
    yield
    await attack.hold(
        attack.head("GET", f"/v1/files/{uploaded['id']}/content", key="reader") + END, reads=False
    )


async def unread_runs(attack: Attack) -> Rows:
    """Start runs with 2 MB questions without reading their events. Each run ends after `RUN_S`."""
    text = "word " * (2 * MB // 5)
    yield

    async def watch() -> None:
        run = await start_run(attack, "slow", text, deadline_s=RUN_S)
        async with attack.connection() as (_, writer):  # asyncio alone reads at most one buffer
            writer.write(attack.head("GET", f"/v1/workflows/{run}/events", key="reader") + END)
            await asyncio.sleep(RUN_S)

    await attack.repeat(watch)


async def get_bodies(attack: Attack) -> Rows:
    """Send bodies of 500 MB with GET requests: to event streams and other routes, with and without a key."""
    run = await start_run(attack)
    targets = cycle([(f"/v1/workflows/{run}/events", "reader"), ("/v1/models", ""), ("/healthz", "")])
    chunk = b"%x\r\n" % MB + b"a" * MB + END
    yield

    async def ask() -> None:
        path, key = next(targets)
        head = attack.head("GET", path, CHUNKED, key=key) + END
        await attack.send([head, *repeat(chunk, 500), b"0\r\n\r\n"])

    await attack.repeat(ask)


async def store_away(attack: Attack) -> Rows:
    """Send requests of 3.9 MB to a free worker while the store is locked for writing."""
    request = attack.chat("quick", "word " * (CHAT_BYTES // 5))
    with closing(sqlite3.connect(attack.orders.store, timeout=10)) as store:
        yield
        store.execute("BEGIN IMMEDIATE")
        await attack.repeat(lambda: attack.send([request]), pause_s=0)


async def request_ids(attack: Attack) -> Rows:
    """Send an `X-Request-ID` header of 15 kB that contains a terminal control sequence, without a key."""
    request = attack.head("GET", "/healthz", "x-request-id: \x9b2Jforged" + "a" * 15_000) + END
    yield

    async def ask() -> None:
        async with attack.connection() as (reader, writer):
            while True:
                await attack.exchange(reader, writer, request)

    await attack.repeat(ask)


async def blank_events(attack: Attack) -> Rows:
    """Let a provider send 500 MB of empty lines."""
    async with attack.provider({"flood": lambda: repeat(b"\n" * 65_536, 500 * MB // 65_536)}):
        yield
        await attack.repeat(lambda: attack.send([attack.chat("flood", "Why?")]))


async def unknown_events(attack: Attack) -> Rows:
    """Let a provider send 500 MB of events of unknown types."""
    piece = b'event: unknown\ndata: {"type":"unknown"}\n\n' * 1000
    async with attack.provider({"flood": lambda: repeat(piece, 500 * MB // len(piece))}):
        yield
        await attack.repeat(lambda: attack.send([attack.chat("flood", "Why?")]))


async def small_chunks(attack: Attack) -> Rows:
    """Send a 2 MB body in one-byte chunks, without a key."""
    head = attack.head("POST", CHAT, TYPE, CHUNKED) + END
    piece = b"1\r\na\r\n" * 10_000
    yield
    await attack.repeat(lambda: attack.send([head, *repeat(piece, 200), b"0\r\n\r\n"]))


async def connect(attack: Attack) -> Rows:
    """Send `CONNECT`, which must be answered with an error."""
    request = attack.head("CONNECT", "127.0.0.1:80") + END

    async def ask() -> None:
        try:
            if await attack.send([request]) < 400:
                attack.breach("The server opened a tunnel for CONNECT.")
        except REQUEST_ERRORS:
            attack.breach("The server did not answer CONNECT.")

    yield
    await attack.repeat(ask)


@dataclass(frozen=True)
class AttackKind:
    """One attack. `count` is its connections at `--scale 1`, `addresses` the numbers of source addresses."""

    attack: Callable[[Attack], Rows]
    count: int
    addresses: tuple[int, ...] = (1,)


SEVERAL = (1, 8)
KINDS = {
    "idle": AttackKind(idle, 5000, SEVERAL),
    "unfinished": AttackKind(send_first_byte, 5000, SEVERAL),
    "headers": AttackKind(headers, 4, SEVERAL),
    "prompts": AttackKind(prompts, 5, SEVERAL),
    "event_streams": AttackKind(event_streams, 4096),
    "trailers": AttackKind(trailers, 4),
    "endless_trailer": AttackKind(endless_trailer, 2),
    "trailer_credentials": AttackKind(trailer_credentials, 4),
    "http2": AttackKind(http2, 500),
    "newlines": AttackKind(newlines, 5),
    "long_lines": AttackKind(long_lines, 5),
    "personal_chats": AttackKind(personal_chats, 12),
    "openapi": AttackKind(openapi, 100),
    "lists": AttackKind(lists, 100),
    "large_counts": AttackKind(large_counts, 60),
    "large_records": AttackKind(large_records, 250),
    "unread_downloads": AttackKind(unread_downloads, 1200),
    "unread_runs": AttackKind(unread_runs, 100),
    "get_bodies": AttackKind(get_bodies, 3),
    "store_away": AttackKind(store_away, 6),
    "request_ids": AttackKind(request_ids, 20),
    "blank_events": AttackKind(blank_events, 1),
    "unknown_events": AttackKind(unknown_events, 1),
    "small_chunks": AttackKind(small_chunks, 20),
    "connect": AttackKind(connect, 20),
}
EXTRA_KINDS = {"large_unfinished": AttackKind(large_unfinished, 5000, SEVERAL)}
"""Attacks that the server is known not to withstand. They run only if `--only` names them."""


async def start_run(attack: Attack, model: str = "slow", text: str = "Why?", **podium: Any) -> str:
    """Start a background run and return its id."""
    started = await attack.prepare(attack.chat(model, text, podium={"background": True, **podium}))
    return str(started["id"])


async def keep_reading(attack: Attack, path: str) -> None:
    """Read `path` repeatedly over persistent connections."""
    request = attack.head("GET", path, key="attacker") + END

    async def ask() -> None:
        async with attack.connection() as (reader, writer):
            while True:
                status, _ = await attack.exchange(reader, writer, request)
                if status != 200:
                    await asyncio.sleep(0.2)

    await attack.repeat(ask, pause_s=0)


def batch_line(content: str) -> bytes:
    body = {"model": "quick", "messages": [{"role": "user", "content": content}]}
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": body}
    return json.dumps(line).encode() + b"\n"


def upload(attack: Attack, pieces: Iterable[bytes], key: str = "attacker") -> Iterable[bytes]:
    """Return the request that uploads a batch file, in pieces."""
    pieces = list(pieces)
    before = (
        b'--x\r\ncontent-disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\ncontent-disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n'
    )
    after = b"\r\n--x--\r\n"
    n_bytes = len(before) + sum(map(len, pieces)) + len(after)
    kind, length = "content-type: multipart/form-data; boundary=x", f"content-length: {n_bytes}"
    return [attack.head("POST", "/v1/files", kind, length, key=key) + END + before, *pieces, after]
