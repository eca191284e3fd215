"""OpenAI endpoint that answers immediately, in a process of its own: `python -m loadtest.rig.echo_upstream
PORT`.

It implements as much of chat completions as a proxy in front of it needs, on any path. It answers with JSON,
or with a stream of `CHUNKS` events, their usage and `[DONE]`. Both responses are prepared bytes, so that only
the proxy is measured. Each event is an HTTP chunk, and all of them are written together. The endpoint
supports only HTTP/1.1 requests with a content-length, and ignores the name of the model.
"""

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from typing import Any

HOST = "127.0.0.1"
CHUNKS = 20
TEXT = "".join(f"word-{number} " for number in range(CHUNKS))
"""Full answer. All of its words differ, so that a lost or repeated one is noticed."""
USAGE = {"prompt_tokens": 10, "completion_tokens": CHUNKS, "total_tokens": 10 + CHUNKS}
HEAD = {"id": "chatcmpl-1", "created": 1_790_000_000, "model": "m"}
LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
STREAMED = re.compile(rb'"stream": *true')


def _chunks() -> Iterator[dict[str, Any]]:
    for word in re.findall(r"\S+ ", TEXT):
        yield {"choices": [{"index": 0, "delta": {"content": word}, "finish_reason": None}]}
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    yield {"choices": [], "usage": USAGE}


def _stream() -> bytes:
    objects = (json.dumps(HEAD | {"object": "chat.completion.chunk"} | chunk) for chunk in _chunks())
    events = [f"data: {data}\n\n".encode() for data in (*objects, "[DONE]")]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (*events, b""))


def _whole() -> bytes:
    """Return the non-streamed answer with its headers."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    body = json.dumps(HEAD | {"object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    return head % len(body) + body


STREAM, WHOLE = _stream(), _whole()


class EchoProtocol(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start with an empty buffer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._unread = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer every complete request."""
        self._unread += data
        while (head := self._unread.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._unread, 0, head)
            end = head + 4 + (int(length.group(1)) if length else 0)
            if len(self._unread) < end:
                return
            self._transport.write(STREAM if STREAMED.search(self._unread, head, end) else WHOLE)
            self._unread = self._unread[end:]


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(EchoProtocol, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1])))
