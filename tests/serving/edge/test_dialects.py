"""Errors have the dialect of the path, whether the parser, the edge, a route or a run raises them."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from conductor.errors import BadTask, PodiumError
from conductor.model.failure import Failure
from serving.api.dialect import Dialects
from serving.api.dialects.chat.dialect import ChatDialect
from serving.api.dialects.table import CHAT
from serving.api.request import ApiRequest
from tests.serving.api.served import ASK
from tests.serving.edge.test_bounds import listening

PATH = "/v1/other"


class OtherDialect(ChatDialect):
    """Chat dialect with its own form of errors, like Anthropic's."""

    def parse(self, body: bytes) -> ApiRequest:
        if b"forbidden word" in body:
            raise BadTask("A forbidden word.", param="input")
        return super().parse(body)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        return {"type": "error", "said": error.message}


DIALECTS = Dialects({"/v1/chat/completions": CHAT, PATH: OtherDialect()}, default=CHAT)


@asynccontextmanager
async def connected() -> AsyncGenerator[int]:
    async with listening(DIALECTS, header_s=0.3, stall_s=0.3, max_header_bytes=2048) as (port, _):
        yield port


async def answer(port: int, request: bytes) -> tuple[int, dict[str, Any]]:
    """Return the status and body of the answer to `request`."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        lines = head.lower().split(b"\r\n")
        size = next(int(line.split(b":")[1]) for line in lines if line.startswith(b"content-length"))
        body = json.loads(await reader.readexactly(size))
    writer.close()
    return int(head.split()[1]), body


def post(path: str, body: Any, *headers: str, more_bytes: int = 0) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    header_lines = {"content-type: application/json", "host: localhost", *headers}
    header_lines = (
        header_lines - {"content-type: application/json"}
        if "content-type: text/plain" in headers
        else header_lines
    )
    lines = [f"POST {path} HTTP/1.1", *header_lines, f"content-length: {len(content) + more_bytes}"]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + content


FAULTS: dict[str, tuple[int, Any]] = {
    "a body that is not JSON": (400, lambda path: post(path, b"{")),
    "a model that is not there": (404, lambda path: post(path, ASK | {"model": "nobody"})),
    "a content type": (415, lambda path: post(path, ASK, "content-type: text/plain")),
    "a foreign host": (403, lambda path: post(path, ASK, "host: evil.example")),
    "a body that is announced too large": (413, lambda path: post(path, b"{" * 100_000, more_bytes=10**9)),
    "a body that stops": (408, lambda path: post(path, b"{", more_bytes=9)),
    "headers that are too long": (431, lambda path: post(path, ASK, "x-long: " + "x" * 4000)),
    "headers that stop": (408, lambda path: f"POST {path} HTTP/1.1\r\nhost: local".encode()),
    "another method": (405, lambda path: f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()),
    "a path below": (404, lambda path: post(f"{path}/below", ASK)),
}


@pytest.mark.parametrize(("status", "request_at"), FAULTS.values(), ids=FAULTS)
async def test_every_error_has_the_form_of_its_paths_dialect(status: int, request_at: Any) -> None:
    async with connected() as port:
        other = await answer(port, request_at(PATH))
        chat = await answer(port, request_at("/v1/chat/completions"))
    assert (other[0], other[1].keys()) == (status, {"type", "said"})
    assert (chat[0], chat[1].keys()) == (status, {"error"})
    assert other[1]["said"].partition(" ")[2] or status == 404
    assert chat[1]["error"].keys() >= {"message", "type", "param", "code"}


async def test_a_dialects_own_rules_and_responses_apply_at_its_path() -> None:
    worded = ASK | {"messages": [{"role": "user", "content": "forbidden word"}]}
    async with connected() as port:
        assert await answer(port, post(PATH, worded)) == (
            400,
            {"type": "error", "said": "A forbidden word."},
        )
        assert (await answer(port, post("/v1/chat/completions", worded)))[0] == 200
        assert (await answer(port, post(PATH, ASK)))[0] == 200


async def test_an_error_at_an_unknown_path_has_the_default_dialect() -> None:
    async with connected() as port:
        status, body = await answer(port, post("/v1/otherwise", ASK))
        assert (status, body["error"]["code"]) == (404, "not_found")
