"""Encoded request bodies, HEAD and WebSocket handshakes, over real sockets."""

import asyncio
import gzip
import io
import json
import random
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import httpx2
import pytest
import zstandard

from serving.edge.decoding import DECODERS, STEP_BYTES, decode
from tests.serving.api.keyed import keyed
from tests.serving.api.served import ASK, Served, scripted, served, team
from tests.serving.edge.test_bounds import HEAD, answer, listening, send_bytes
from tests.states import least_cpu_s

CHAT, MESSAGES, RESPONSES, COMPLETIONS = (
    "/v1/chat/completions",
    "/v1/messages",
    "/v1/responses",
    "/v1/completions",
)
BODIES: dict[str, Any] = {
    CHAT: ASK,
    MESSAGES: ASK | {"max_tokens": 100},
    RESPONSES: {"model": "mini", "input": "Why is the sky blue?"},
    COMPLETIONS: {"model": "a", "prompt": "Why is the sky blue?"},
    "/v1/messages/count_tokens": ASK,
    "/v1/conversations": {"items": []},
}
Encode = Callable[[bytes], bytes]


def raw_deflate(body: bytes) -> bytes:
    compressor = zlib.compressobj(wbits=-15)
    return compressor.compress(body) + compressor.flush()


def zstd_stream(body: bytes) -> bytes:
    """Compress to a frame without a size, as Codex does."""
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    return compressor.compress(body) + compressor.flush()


def two(encode: Encode) -> Encode:
    """Encode as two concatenated members or frames."""
    return lambda body: encode(body[:20]) + encode(body[20:])


ENCODINGS: dict[str, tuple[str, Encode]] = {
    "gzip": ("gzip", gzip.compress),
    "x-gzip": ("X-GZIP", gzip.compress),
    "gzip of two members": ("gzip", two(gzip.compress)),
    "deflate": ("deflate", zlib.compress),
    "deflate without its header": ("deflate", raw_deflate),
    "zstd": ("zstd", zstandard.compress),
    "zstd as a stream": ("zstd", zstd_stream),
    "zstd of two frames": ("zstd", two(zstandard.compress)),
    "identity": ("identity", bytes),
    "identity beside another": ("identity, gzip", gzip.compress),
}


async def send(api: Served, path: str, body: bytes, encoding: str) -> httpx2.Response:
    headers = {"content-type": "application/json", "content-encoding": encoding}
    return await api.http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("path", BODIES)
async def test_an_encoded_body_is_decoded(path: str) -> None:
    async with served(team()) as api:
        for name, (encoding, encode) in ENCODINGS.items():
            answer = await send(api, path, encode(json.dumps(BODIES[path]).encode()), encoding)
            assert answer.status_code == 200, (name, answer.text)


async def test_a_request_with_an_encoded_body_can_stream() -> None:
    async with served(team()) as api:
        body = gzip.compress(json.dumps(ASK | {"stream": True}).encode())
        answer = await send(api, CHAT, body, "gzip")
        assert answer.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("encoding", ["br", "compress", "gzip, gzip", "gzip, zstd", "zip"])
@pytest.mark.parametrize("path", [CHAT, MESSAGES, RESPONSES])
async def test_an_unsupported_encoding_returns_415_with_the_supported_ones(path: str, encoding: str) -> None:
    async with served(team()) as api:
        answer = await send(api, path, b"...", encoding)
        assert answer.status_code == 415
        message = answer.json()["error"]["message"]
        assert "Content-Encoding" in message
        assert encoding in message
        assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
        assert answer.json()["error"].get("param", "Content-Encoding") == "Content-Encoding"
        assert not api.worker("conductor").calls


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", b"{}"),
        ("gzip", gzip.compress(b"x" * 5000)[:-9]),
        ("gzip", gzip.compress(b"x" * 5000) + b"more"),
        ("deflate", b"\x78\x9c{}"),
        ("deflate", zlib.compress(b"x" * 5000)[:-5]),
        ("deflate", zlib.compress(b"{}") + b"more"),
        ("zstd", b"{}"),
        ("zstd", zstandard.compress(b"x" * 5000) + b"more"),
        ("zstd", gzip.compress(b"{}")),
    ],
    ids=range(9),
)
async def test_a_damaged_encoded_body_returns_400_with_the_header(encoding: str, body: bytes) -> None:
    async with served(team()) as api:
        answer = await send(api, CHAT, body, encoding)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "Content-Encoding")


@cache
def bomb(encode: str, size_bytes: int) -> bytes:
    piece, out = bytes(STEP_BYTES), io.BytesIO()
    compressor: Any = zstandard.ZstdCompressor().compressobj() if encode == "zstd" else zlib.compressobj(wbits=31 if encode == "gzip" else 15)  # fmt: skip
    for _ in range(size_bytes // STEP_BYTES):
        out.write(compressor.compress(piece))
    return out.getvalue() + compressor.flush()


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "zstd"])
@pytest.mark.parametrize("path", [CHAT, "/v1/conversations", "/v1/messages/count_tokens"])
async def test_a_decompression_bomb_returns_413_and_is_not_fully_decoded(encoding: str, path: str) -> None:
    import tracemalloc

    body = bomb(encoding, 100 * STEP_BYTES)
    assert len(body) < 1_000_000
    async with served(team(limits={"max_body_bytes": 4_000_000})) as api:
        tracemalloc.start()
        answer = await send(api, path, body, encoding)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (answer.status_code, answer.json()["error"]["param"]) == (413, "body")
        assert peak < 30_000_000


async def test_the_body_limits_apply_to_the_decoded_body() -> None:
    async with served(team(limits={"max_body_bytes": 400_000, "max_text_bytes": 50_000})) as api:
        text = json.dumps(ASK | {"messages": [{"role": "user", "content": "long " * 20_000}]}).encode()
        refused = await send(api, CHAT, gzip.compress(text), "gzip")
        assert (refused.status_code, refused.json()["error"]["param"]) == (413, "messages")
        large = await send(api, CHAT, gzip.compress(b" " * 400_000 + b"{}"), "gzip")
        assert (large.status_code, large.json()["error"]["param"]) == (413, "body")
        # Random digits: the encoded body is longer than the text limit, but is a picture.
        digits = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyzABCDEFGH0123", k=100_000))
        picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{digits}"}}
        parts = [{"type": "text", "text": "What is it?"}, picture]
        body = gzip.compress(json.dumps(ASK | {"messages": [{"role": "user", "content": parts}]}).encode())
        assert len(body) > 50_000
        assert (await send(api, CHAT, body, "gzip")).status_code != 413


async def test_no_body_is_decoded_for_a_caller_without_a_key(tmp_path: Path) -> None:
    async with keyed(tmp_path) as it:
        answer = await it.api.http.post(
            CHAT,
            content=b"no gzip",
            headers={"content-type": "application/json", "content-encoding": "gzip"},
        )
        assert answer.status_code == 401


@pytest.mark.parametrize("n_chars", [10, 200_000], ids=["whole at once", "in pieces"])
async def test_an_encoded_body_is_decoded_behind_a_proxy(n_chars: int) -> None:
    noise = "".join(random.Random(1).choices("abcdefghijklmnopqrstuvwxyz0123456789", k=n_chars))
    body = gzip.compress(json.dumps(ASK | {"messages": [{"role": "user", "content": noise}]}).encode())
    request = HEAD + b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    async with listening() as (port, _):
        assert (await answer(await send_bytes(port, request)))[0] == 200


async def test_an_encoded_upload_is_decoded() -> None:
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": ASK}
    form = "\r\n".join([
        "--x", 'content-disposition: form-data; name="purpose"', "", "batch",
        "--x", 'content-disposition: form-data; name="file"; filename="a.jsonl"', "", json.dumps(line), "--x--", "",
    ])  # fmt: skip
    headers = {"content-type": "multipart/form-data; boundary=x", "content-encoding": "gzip"}
    async with served(team()) as api:
        answer = await api.http.post("/v1/files", content=gzip.compress(form.encode()), headers=headers)
        assert answer.status_code == 200
        download = await api.http.get(f"/v1/files/{answer.json()['id']}/content")
        assert json.loads(download.text) == line


GETS = ["/healthz", "/readyz", "/v1/models", "/v1/models/mini", "/v1/workflows", "/v1/openapi.json", "/v1/replicas", "/v1/files", "/v1/batches"]  # fmt: skip


@pytest.mark.parametrize("path", [*GETS, "/v1/workflows/absent", "/v1/absent", CHAT])
async def test_head_returns_the_headers_of_get_without_a_body(path: str) -> None:
    async with served(team()) as api:
        get, head = await api.http.get(path), await api.http.head(path)
        assert (head.status_code, head.content) == (get.status_code, b"")
        for name in ("content-type", "content-length"):
            assert head.headers.get(name) == get.headers.get(name)
        again = await api.http.get(path)  # on the same connection, which must hold no rest of the HEAD
        assert again.status_code == get.status_code


async def test_head_of_a_run_and_its_events_returns_immediately() -> None:
    slow = [scripted("a", "Slow.", delay_s=30)]
    async with served(team(workers=slow, workflows={})) as api:
        id = (await api.post({"model": "a"}, background=True)).json()["id"]
        async with asyncio.timeout(10):
            for path in (f"/v1/workflows/{id}", f"/v1/workflows/{id}/events"):
                head = await api.http.head(path)
                assert (head.status_code, head.content) == (200, b""), path
        await api.http.post(f"/v1/workflows/{id}/cancel")


@pytest.mark.parametrize("path", [RESPONSES, CHAT, MESSAGES, "/v1/realtime", "/v1/models"])
@pytest.mark.parametrize("edge", ["router", "proxy"])
async def test_a_websocket_handshake_returns_426_with_the_alternative(path: str, edge: str) -> None:
    handshake = (
        f"GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: keep-alive, Upgrade\r\nupgrade: WebSocket\r\n"
        "sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nopenai-beta: responses_websockets=2026-02-06\r\n\r\n"
    )

    async def answer(port: int) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(handshake.encode())
        async with asyncio.timeout(10):
            head = await reader.readuntil(b"\r\n\r\n")
            size = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length"))  # fmt: skip
            body = await reader.readexactly(size)
        writer.close()
        return head + body

    if edge == "proxy":
        async with listening() as (port, _):
            response = await answer(port)
    else:
        async with served(team()) as api:
            response = await answer(int(api.url.rpartition(":")[2]))
    head, _, body = response.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ")
    assert b"upgrade: HTTP/1.1" in head
    assert "POST" in json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"") * 500_000),
        ("gzip", gzip.compress(b"{") * 400_000),
        ("gzip", b"\x1f\x8b\x08\x08\0\0\0\0\0\x03" + b"a" * 9_000_000),
        ("zstd", zstandard.compress(b"") * 1_000_000),
        ("zstd", b"\x50\x2a\x4d\x18" + bytes(4) + zstandard.compress(b"") * 1_500_000),
    ],
    ids=[
        "empty members",
        "short members",
        "a long header",
        "empty frames",
        "a skippable frame, and empty ones",
    ],
)
async def test_a_body_with_many_empty_parts_is_rejected_quickly(encoding: str, body: bytes) -> None:
    async with served(team(limits={"max_body_bytes": 20_000_000})) as api:

        async def reject() -> None:
            assert (await send(api, CHAT, body, encoding)).status_code == 400

        assert await least_cpu_s(reject, 0.7) < 0.7


async def test_long_bodies_are_decoded_one_at_a_time() -> None:
    under_way, most = 0, 0

    def pieces() -> Iterator[bytes]:
        nonlocal under_way, most
        yield bytes(STEP_BYTES)
        yield bytes(STEP_BYTES)
        under_way += 1
        most = max(most, under_way)
        yield bytes(STEP_BYTES)
        under_way -= 1

    long = asyncio.Lock()
    decoded = await asyncio.gather(*(decode(pieces(), 10**8, long) for _ in range(5)))
    assert [len(each) for each in decoded] == [3 * STEP_BYTES] * 5
    assert most == 1


@pytest.mark.parametrize(
    "body", [zstandard.compress(b""), b"\x50\x2a\x4d\x18" + bytes(4)], ids=["empty", "skippable"]
)
async def test_a_zstd_body_is_decoded_up_to_a_hundred_frames(body: bytes) -> None:
    read = 0

    class Counted(bytes):
        def __getitem__(self, key: Any) -> Any:
            nonlocal read
            read = max(read, key.start)
            return super().__getitem__(key)

    with pytest.raises(EOFError):
        list(DECODERS["zstd"](Counted(body * 10_000)))
    assert read <= 100 * len(body)
