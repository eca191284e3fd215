"""An upstream that answers at once, in a process of its own: `python -m bench.echo_upstream PORT`.

It speaks as much of OpenAI's chat completions as a proxy in front of it needs, on any path of the loopback: JSON, or a stream of `CHUNKS`
events, their usage and `[DONE]`. Both are bytes that were ready before the first request, so that a measurement around it is of
the proxy. Each event is an HTTP chunk of its own, all of them written together.

It knows nothing of who asks. HTTP/1.1 with a content-length only; the model's name is whatever was asked for: it is not read.
"""

import argparse
import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

HOST = "127.0.0.1"
CHUNKS = 20
TEXT = "".join(f"word-{number} " for number in range(CHUNKS))
"""The whole answer. No two of its words are alike, so that a lost or doubled one shows."""
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
    """The streamed answer, headers and all."""
    objects = (json.dumps(HEAD | {"object": "chat.completion.chunk"} | chunk) for chunk in _chunks())
    events = [f"data: {data}\n\n".encode() for data in (*objects, "[DONE]")]
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(event), event) for event in (*events, b""))


def _whole() -> bytes:
    """The answer at once, headers and all."""
    choice = {"index": 0, "message": {"role": "assistant", "content": TEXT}, "finish_reason": "stop"}
    body = json.dumps(HEAD | {"object": "chat.completion", "choices": [choice], "usage": USAGE}).encode()
    return (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


STREAM, WHOLE = _stream(), _whole()


class Instant(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with nothing read."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._read = transport, b""

    def data_received(self, data: bytes) -> None:
        """Answer every request that is whole."""
        self._read += data
        while (head := self._read.find(b"\r\n\r\n")) >= 0:
            length = LENGTH.search(self._read, 0, head)
            end = head + 4 + (int(length.group(1)) if length else 0)
            if len(self._read) < end:
                return
            self._transport.write(STREAM if STREAMED.search(self._read, head, end) else WHOLE)
            self._read = self._read[end:]


async def serve(port: int) -> None:
    """Until it is ended."""
    server = await asyncio.get_running_loop().create_server(Instant, HOST, port)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m bench.echo_upstream", description=__doc__)
    parser.add_argument("port", type=int, help="on loopback")
    asyncio.run(serve(parser.parse_args().port))
