"""The chunks of OpenAI's chat completion stream, read from bytes.

The SDK's own reader makes a pydantic tree of every chunk, about 0.2 ms each (`make bench`, decision 0010);
a router reads thousands of them a second, and needs a handful of their fields. Unknown fields are passed
over; one that holds the answer and is of the wrong type makes the stream garbled. What only holds accounts
may be anything: `usage.py` judges it.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, cast

import msgspec

from serving.workers.event_stream import Event, EventReader, json_of
from serving.workers.stream_errors import error_in_event

MOST_GROUP_CHARS = 256
"""Of words that arrived in one read and are passed on as one piece."""
TEXT_FIELDS = ("text", "thinking", "reasoning", "refusal", "content", "summary", "value")
"""Where the parts of a message have their words."""


class FunctionPiece(msgspec.Struct):
    """A piece of what is called, and with what."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None
    """OpenAI's are text. Some servers send the object itself."""

    @property
    def text(self) -> str:
        """The arguments as text. An object without fields stands for arguments that come later, or for none."""
        given = self.arguments
        return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False) if given else ""


class CallPiece(FunctionPiece):
    """A piece of a call of a tool; some servers have no `function` in it, but its fields."""

    index: object = None
    id: object = None
    function: FunctionPiece | None = None
    extra_content: object = None


class ChunkDelta(msgspec.Struct):
    """A piece of the message."""

    content: str | list[Any] | dict[str, Any] | None = None
    """Mistral's are lists of parts, thoughts among them."""
    refusal: str | None = None
    reasoning_content: object = None
    reasoning: object = None
    reasoning_details: object = None
    tool_calls: list[CallPiece | None] | CallPiece | None = None
    function_call: FunctionPiece | None = None
    """OpenAI's older form of a call."""

    @property
    def calls(self) -> list[CallPiece]:
        """The pieces of calls in it."""
        listed = self.tool_calls if isinstance(self.tool_calls, list) else [self.tool_calls]
        calls = [each for each in listed if each is not None]
        return calls or ([CallPiece(function=self.function_call)] if self.function_call else [])


class Choice(msgspec.Struct):
    """One of the answers; we ask for one, and read no other."""

    index: object = None
    delta: ChunkDelta | None = None
    message: ChunkDelta | None = None
    """All of it at once: from servers that do not stream."""
    finish_reason: object = None
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


def words_of(choice: Choice | None) -> tuple[str, str]:
    """Return the words of the answer and of thoughts in a piece."""
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
    """Return the words of a chunk that has nothing else, as nearly all have; None if it may say more.

    Args:
        chunk: one of the answer.
        model: what chunks before have said of it.
    """
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
    """The words of the answer in parts of a message, and of thoughts."""
    words, thoughts = list[str](), list[str]()
    for part in content if isinstance(content, list) else [content]:
        is_thought = fields(part).get("type") in ("thinking", "reasoning")
        (thoughts if is_thought else words).append(text_of(part))
    return "".join(words), "".join(thoughts)


def text_of(value: object) -> str:
    """The words in a text, in a part of a message, or in a list of parts."""
    match value:
        case str():
            return value
        case list():
            return "".join(map(text_of, cast(list[object], value)))
        case dict():
            given = fields(cast(object, value))
            return next((text for name in TEXT_FIELDS if (text := text_of(given.get(name)))), "")
        case _:
            return ""


def together(words: list[tuple[str, str]]) -> tuple[str, str]:
    """Join words that arrived in one read."""
    return "".join([text for text, _ in words]), "".join([thought for _, thought in words])


def groups_of(words: list[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """Split words that arrived in one read into groups that are passed on as one piece each: short ones of the answer, or
    of thoughts.
    """
    group, n_chars = list[tuple[str, str]](), 0
    for each in words:
        n_more = len(each[0]) + len(each[1])
        if group and (n_chars + n_more > MOST_GROUP_CHARS or bool(each[1]) != bool(group[0][1])):
            yield group
            group, n_chars = [], 0
        group.append(each)
        n_chars += n_more
    if group:
        yield group


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
    except (msgspec.DecodeError, UnicodeDecodeError):
        value = json_of(data)
        if not isinstance(value, dict):
            raise msgspec.DecodeError("A chunk is no object.") from None
        return msgspec.convert(value, ChatChunk, strict=False)


class ChunkReader:
    """Bytes as they arrive in, the chunks that became whole with them out."""

    def __init__(self) -> None:
        self._events = EventReader()
        self._has_spoken = False
        self.error: object = None
        """The error that the stream told of; nothing is read after it."""
        self.fault: msgspec.DecodeError | None = None
        """Why the next event is no chunk; nothing is read after it."""

    @property
    def is_done(self) -> bool:
        """Whether `[DONE]` came."""
        return self._events.is_done

    def feed(self, piece: bytes) -> list[ChatChunk]:
        """The chunks that `piece` completes, up to the first `error` or `fault`; none after `[DONE]`.

        Raises:
            BodyRefused: an event is too long.
        """
        return self._chunks(self._events.feed(piece))

    def end(self) -> list[ChatChunk]:
        """The chunks that the end of the body completes."""
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

    def _read_message(self, choice: Choice) -> None:
        """Take a whole message for the piece that it is, unless it repeats what came before it."""
        if choice.message is not None:
            choice.delta = choice.message
            choice.finish_reason = choice.finish_reason or "stop"
        if choice.delta is not None:
            self._has_spoken = bool(choice.delta.content or choice.delta.calls)


def _error_in(chunk: ChatChunk, event: Event) -> Mapping[str, object] | None:
    """Return the error that a chunk tells of; None if it tells of none. Servers do so in many ways; see `error_in_event`."""
    in_choice = None
    for each in chunk.choices or ():
        in_choice = in_choice or each.error
    if not (chunk.error or in_choice) and (chunk.choices or chunk.usage):
        return None
    body = fields(json_of(event.data))
    return error_in_event({"error": in_choice} | body if in_choice else body, event.name)
