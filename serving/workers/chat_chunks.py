"""The chunks of OpenAI's chat completion stream, read from bytes.

The SDK's own reader makes a pydantic tree of every chunk, about 0.2 ms each (`make bench`, decision 0010);
a router reads thousands of them a second, and needs a handful of their fields. Unknown fields are passed
over; one that holds the answer and is of the wrong type makes the stream garbled. What only holds accounts
may be anything: `usage.py` judges it.
"""

import json
from math import inf
from typing import Any, cast

import msgspec

from serving.workers.event_stream import Event, EventReader
from serving.workers.stream_errors import error_in_event


class FunctionPiece(msgspec.Struct):
    """A piece of what is called, and with what."""

    name: str | None = None
    arguments: str | None = None


class CallPiece(msgspec.Struct):
    """A piece of a call of a tool."""

    index: int | None = None
    id: str | None = None
    function: FunctionPiece | None = None
    extra_content: object = None


class ChunkDelta(msgspec.Struct):
    """A piece of the message."""

    content: str | None = None
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_details: object = None
    tool_calls: list[CallPiece] | None = None


class Choice(msgspec.Struct):
    """One of the answers; we ask for one, and read no other."""

    index: object = None
    delta: ChunkDelta | None = None
    finish_reason: str | None = None
    stop_reason: object = None
    """vLLM's: the stop sequence that ended the answer, or the number of a token that did."""
    text: str | None = None
    """In place of `delta`, where a text is completed."""
    logprobs: object = None
    error: object = None
    """OpenRouter's."""


class ChatChunk(msgspec.Struct):
    """A `chat.completion.chunk`, or an error in the middle of a stream."""

    choices: list[Choice] | None = None
    usage: object = None
    """Tokens so far, and on some servers dollars."""
    model: object = None
    error: Any = None
    podium: object = None

    @property
    def choice(self) -> Choice | None:
        """The first of the answers, where the chunk has a piece of it."""
        for each in self.choices or ():
            if each.index in (0, None, "0"):
                return each
        return None


def words_of(chunk: ChatChunk) -> tuple[str, str]:
    """The words of the answer in a chunk, and of thoughts."""
    choice = chunk.choice
    delta = choice.delta if choice else None
    if delta is None:
        return (choice.text or "" if choice else ""), ""
    thought = delta.reasoning_content or delta.reasoning
    return delta.content or delta.refusal or "", thought if isinstance(thought, str) else ""


def together(words: list[tuple[str, str]]) -> tuple[str, str]:
    """As one piece: where nobody reads along, nobody misses the seams."""
    return "".join(text for text, _ in words), "".join(thought for _, thought in words)


def fields(value: object) -> dict[str, object]:
    """The fields of a JSON object; none where it is something else."""
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


_decode = msgspec.json.Decoder(ChatChunk, strict=False).decode


def decode(data: bytes) -> ChatChunk:
    """The chunk in an event's data; also where its accounts hold numbers that JSON or 64 bits do not.

    Raises:
        msgspec.DecodeError: it is none.
    """
    try:
        return _decode(data)
    except msgspec.DecodeError:
        value = _decode_any(data)
        if not isinstance(value, dict):
            raise
        return msgspec.convert(value, ChatChunk, strict=False)


def _decode_any(data: bytes) -> object:
    """Return the JSON in `data`, with numbers of any size; None if it is no JSON."""
    try:
        return json.loads(data, parse_int=lambda digits: int(digits) if len(digits) < 100 else inf)
    except (ValueError, RecursionError):
        return None


class ChunkReader:
    """Bytes as they arrive in, the chunks that became whole with them out."""

    def __init__(self) -> None:
        self._events = EventReader()

    @property
    def is_done(self) -> bool:
        """Whether `[DONE]` came."""
        return self._events.is_done

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that `piece` completes; none after `[DONE]`.

        Raises:
            msgspec.DecodeError: an event's data is not a chunk.
            BodyRefused: an event is too long.
        """
        return [_with_error(decode(event.data), event) for event in self._events.feed(piece)]


def _with_error(chunk: ChatChunk, event: Event) -> ChatChunk:
    """Return `chunk` with the error that it tells of. Servers do so in many ways; see `error_in_event`."""
    in_choice = next((each.error for each in chunk.choices or () if each.error), None)
    if chunk.error or in_choice or not (chunk.choices or chunk.usage):
        body = fields(_decode_any(event.data))
        chunk.error = error_in_event({"error": in_choice} | body if in_choice else body, event.name)
    return chunk
