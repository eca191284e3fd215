"""Decoder for the chunks of OpenAI's Chat Completions stream.

A router reads thousands of chunks per second and needs only a few of their fields. The decoder of the SDK
would build a tree of pydantic objects for every chunk, which takes about 0.2 ms (`make bench`, decision
0010).

Unknown fields are ignored. A field of the answer with the wrong type makes the stream unreadable. Usage fields may have
any type: `usage.py` checks them.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from serving.workers.event_stream import Event, EventReader, json_of
from serving.workers.stream_errors import error_in_event

MOST_GROUP_CHARS = 256
"""Maximum number of characters that are joined from several chunks of one read and passed on as one piece."""
TEXT_FIELDS = ("text", "thinking", "reasoning", "refusal", "content", "summary", "value")
"""Fields that may contain the text of a part of a message."""


class FunctionPiece(msgspec.Struct):
    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    """Arguments as JSON text. Some servers send the object itself."""

    @property
    def text(self) -> str:
        """Arguments as text. An empty object counts as no text, because the arguments may follow later."""
        value = self.arguments
        return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if value else ""


class CallPiece(FunctionPiece):
    """Piece of a tool call. Some servers put the fields of `function` directly into it."""

    index: object = None
    id: object = None
    function: FunctionPiece | None = None
    extra_content: object = None


class ChunkDelta(msgspec.Struct):
    """Piece of the message, from one chunk."""

    content: str | list[Any] | dict[str, Any] | None = None
    """Text. Mistral sends a list of parts instead, which may include thoughts."""
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_details: object = None
    tool_calls: list[CallPiece | None] | CallPiece | None = None
    function_call: FunctionPiece | None = None
    """OpenAI's older form of a call."""

    @property
    def calls(self) -> list[CallPiece]:
        listed = self.tool_calls if isinstance(self.tool_calls, list) else [self.tool_calls]
        calls = [each for each in listed if each is not None]
        return calls or ([CallPiece(function=self.function_call)] if self.function_call else [])


class ChunkChoice(msgspec.Struct):
    """One of the answers. Requests ask for one, and further ones are ignored."""

    index: object = None
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    """Complete message, if the server does not stream."""
    finish_reason: object = None
    stop_reason: object = None
    """From vLLM: the stop sequence or token number that ended the answer."""
    text: str | None = None
    """Text of a completion, instead of `delta`."""
    logprobs: object = None
    error: object = None
    """From OpenRouter."""


class ChatChunk(msgspec.Struct):
    """A `chat.completion.chunk`, or an error in the middle of a stream."""

    choices: list[ChunkChoice] | None = None
    usage: object = None
    """Number of tokens so far. Some servers include the cost."""
    model: object = None
    error: Any = None
    podium: object = None

    @property
    def choice(self) -> ChunkChoice | None:
        for each in self.choices or ():
            if each.index in (0, None, "0"):
                return each
        return None


def words_of(choice: ChunkChoice | None) -> tuple[str, str]:
    """Return the answer text and the reasoning text in a chunk."""
    delta = choice.delta if choice else None
    if delta is None:
        return (choice.text or "" if choice else ""), ""
    has_thought = delta.reasoning_content or delta.reasoning
    thought = (text_of(delta.reasoning_content) or text_of(delta.reasoning)) if has_thought else ""
    content = delta.content or delta.refusal or ""
    if isinstance(content, str):
        return content, thought
    text, inner = _words_in(content)
    return text, thought or inner


def plain_words(chunk: ChatChunk, model: str | None) -> str | None:
    """Return the text of a chunk with nothing else in it, or None. Another `model` counts as something else."""
    if chunk.usage is not None or chunk.podium is not None or not chunk.choices or len(chunk.choices) > 1:
        return None
    choice = chunk.choices[0]
    delta = choice.delta
    if (
        delta is None
        or type(delta.content) is not str
        or choice.index != 0
        or chunk.model != model
        or choice.finish_reason is not None
        or choice.stop_reason is not None
        or delta.tool_calls
        or delta.function_call
        or delta.refusal
        or delta.reasoning
        or delta.reasoning_content
        or delta.reasoning_details
    ):
        return None
    return delta.content


def _words_in(content: list[Any] | dict[str, Any]) -> tuple[str, str]:
    """Return the answer text and the reasoning text in parts of a message."""
    words, thoughts = list[str](), list[str]()
    for part in content if isinstance(content, list) else [content]:
        is_thought = fields(part).get("type") in ("thinking", "reasoning")
        (thoughts if is_thought else words).append(text_of(part))
    return "".join(words), "".join(thoughts)


def text_of(value: object) -> str:
    """Return the text in a string, in a part of a message, or in a list of parts."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(text_of, cast(list[object], value)))
        case dict():
            part = fields(cast(object, value))
            return next((text for name in TEXT_FIELDS if (text := text_of(part.get(name)))), "")
        case _:
            return ""


def concatenate(words: list[tuple[str, str]]) -> tuple[str, str]:
    """Join the answer texts and the reasoning texts of one read."""
    return "".join([text for text, _ in words]), "".join([thought for _, thought in words])


def groups_of(words: list[tuple[str, str]], max_chunks: int | None) -> Iterator[list[tuple[str, str]]]:
    """Split the texts of one read into short groups of answer texts or thoughts, which are passed on as one
    piece. A group ends after `max_chunks`, where the answer exceeds its limit.
    """
    group, n_chars = list[tuple[str, str]](), 0
    for each in words:
        n_more = len(each[0]) + len(each[1])
        is_full = n_chars + n_more > MOST_GROUP_CHARS or (max_chunks is not None and len(group) >= max_chunks)
        if group and (is_full or bool(each[1]) != bool(group[0][1])):
            yield group
            max_chunks = None if max_chunks is None else max_chunks - len(group)
            group, n_chars = [], 0
        group.append(each)
        n_chars += n_more
    if group:
        yield group


def fields(value: object) -> dict[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


_decode = msgspec.json.Decoder(ChatChunk, strict=False).decode


def decode(data: bytes) -> ChatChunk:
    """Parse an event as a chunk, even with invalid JSON numbers, or numbers beyond 64 bits, in its usage."""
    try:
        return _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = json_of(data)
        if not isinstance(value, dict):
            raise msgspec.DecodeError("A chunk is not an object.") from None
        return msgspec.convert(value, ChatChunk, strict=False)


class ChunkReader:
    """Incremental reader: takes bytes as they arrive, and returns the chunks that they complete."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._has_spoken = False
        self.error: object = None
        """The error in the stream, if any. Later bytes are ignored."""
        self.fault: msgspec.DecodeError | None = None
        """The error of an event that is not a chunk, or None. Later bytes are ignored."""

    @property
    def is_done(self) -> bool:
        """True once `[DONE]` has arrived."""
        return self._events.is_done

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """Return the chunks that `piece` completes, up to the first `error` or `fault`, or to `[DONE]`."""
        return self._chunks(self._events.feed(piece))

    def end(self) -> list[ChatChunk]:
        """Return the chunks that the end of the body completes."""
        return self._chunks(self._events.end())

    def _chunks(self, events: list[Event]) -> list[ChatChunk]:
        chunks = list[ChatChunk]()
        for event in events:
            try:
                chunk = decode(event.data)
            except msgspec.DecodeError as exc:
                self.fault = self.fault or exc
                break
            choices = chunk.choices or []
            is_answer = not chunk.error and len(choices) == 1 and not choices[0].error
            if not is_answer and (error := _error_in(chunk, event)):
                self.error = self.error or error
                break
            if not self._has_spoken and (choice := chunk.choice) is not None:
                self._read_message(choice)
            chunks.append(chunk)
        return chunks

    def _read_message(self, choice: ChunkChoice) -> None:
        """Use a complete message as the piece of its chunk, but only before content that it may repeat."""
        if choice.message is not None:
            choice.delta = choice.message
            choice.finish_reason = choice.finish_reason or "stop"
        if choice.delta is not None:
            self._has_spoken = bool(choice.delta.content or choice.delta.calls)


def _error_in(chunk: ChatChunk, event: Event) -> Mapping[str, object] | None:
    """Return the error in a chunk, in any format of `error_in_event`, or None."""
    in_choice = None
    for each in chunk.choices or ():
        in_choice = in_choice or each.error
    if not (chunk.error or in_choice) and (chunk.choices or chunk.usage):
        return None
    body = fields(json_of(event.data))
    return error_in_event({"error": in_choice} | body if in_choice else body, event.name)
