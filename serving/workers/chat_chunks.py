"""The chunks of OpenAI's chat completion stream, read from bytes.

The SDK's own reader makes a pydantic tree of every chunk, about 0.2 ms each (`make bench`, decision 0010); a router reads
thousands of them a second, and needs a handful of their fields. Unknown fields are passed over; a known one of the wrong
type makes the stream garbled.

The format: https://html.spec.whatwg.org/multipage/server-sent-events.html#parsing-an-event-stream
"""

from typing import Any

import msgspec


class ChunkDelta(msgspec.Struct):
    """A piece of the message."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None


class Choice(msgspec.Struct):
    """One of the answers; we ask for one."""

    delta: ChunkDelta | None = None
    finish_reason: str | None = None


class ReadDetails(msgspec.Struct):
    """Parts of the prompt's tokens."""

    cached_tokens: int | None = None


class WrittenDetails(msgspec.Struct):
    """Parts of the answer's tokens."""

    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    """Tokens so far, and on some servers dollars."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: ReadDetails | None = None
    completion_tokens_details: WrittenDetails | None = None
    cost: object = None


class ChatChunk(msgspec.Struct):
    """A `chat.completion.chunk`, or an error in the middle of a stream."""

    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    model: str | None = None
    error: Any = None
    podium: object = None


_decoded = msgspec.json.Decoder(ChatChunk, strict=False).decode


class ChunkReader:
    """Bytes as they arrive in, the chunks that became whole with them out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._done = False

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that `piece` completes; none after `[DONE]`.

        Raises:
            msgspec.DecodeError: an event's data is not a chunk.
        """
        *lines, self._rest = (self._rest + piece).split(b"\n")
        chunks: list[ChatChunk] = []
        for line in lines:
            field, _, value = line.rstrip(b"\r").partition(b":")
            if field == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not field and not value:
                chunks += self._event()
        return chunks

    def _event(self) -> list[ChatChunk]:
        data, self._data = b"\n".join(self._data), []
        self._done |= data.startswith(b"[DONE]")
        return [] if self._done or not data else [_decoded(data)]
