"""Repair of Anthropic's event stream before its SDK reads it, and the usage that it reports.

The SDK ignores events without a name, and complete messages. But some proxies omit the names of events. Some
servers answer with one complete message, which is replaced by the events of the same content.
"""

from collections.abc import Iterator
from typing import cast

import msgspec
from anthropic.types import RawMessageStreamEvent

from conductor.model.call import Call
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta
from conductor.model.usage import Usage
from serving.workers.answer_stream import AnswerReader, Provider, finish_of
from serving.workers.anthropic_tools import TurnCollector
from serving.workers.chat_chunks import fields
from serving.workers.event_stream import Event, json_of
from serving.workers.output_limit import OutputMeter
from serving.workers.stream_errors import error_in_event
from serving.workers.usage import UsageCheck, has_grown
from serving.workers.wire_tools import WireTools

Fields = dict[str, object]


PING = b"ping"


def events_in(event: Event) -> Iterator[Event]:
    """Yield the events for the SDK in place of `event`, usually itself, or none for a ping."""
    if event.name == PING:
        return
    if event.name not in (b"", b"error", b"message"):
        yield event
        return
    try:
        value: object = json_of(event.data)
    except msgspec.DecodeError:
        yield Event(b"unreadable", event.data)  # the SDK raises the error
        return
    body = fields(value)
    if error := error_in_event(body, event.name):
        yield _event({"type": "error", "error": error})
        return
    kind = str(body.get("type") or "")
    if kind == "message":
        yield from map(_event, _events_of(body))
    elif kind and kind.encode("utf-8", "replace") != PING:
        yield Event(kind.encode("utf-8", "replace"), event.data)


def _events_of(message: Fields) -> Iterator[Fields]:
    yield {"type": "message_start", "message": message | {"content": [], "stop_reason": None}}
    content = message.get("content")
    text = {"type": "text", "text": content}
    blocks = cast(list[object], content) if isinstance(content, list) else [text]
    for index, block in enumerate(blocks):
        yield {"type": "content_block_start", "index": index, "content_block": block}
    reason, stop = message.get("stop_reason") or "end_turn", message.get("stop_sequence")
    end = {"stop_reason": reason, "stop_sequence": stop}
    yield {"type": "message_delta", "delta": end, "usage": message.get("usage")}
    yield {"type": "message_stop"}


def _event(fields: Fields) -> Event:
    return Event(str(fields["type"]).encode(), msgspec.json.encode(fields))


def usage_of(
    reported: object, before: Usage | None, check: UsageCheck, *, is_begun: bool = False
) -> Usage | None:
    """Return the usage that Anthropic reports, or None if it is implausible or lacks output tokens. Missing
    fields are those of `before`.

    At the start of a stream (`is_begun`), the number of output tokens says nothing and is ignored.
    """

    def count(name: str, of: object = reported) -> int | None:
        return check.count(name, getattr(of, name, None))

    uncached, read, total = (
        count(name) for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    )
    split: object = getattr(reported, "cache_creation", None)
    short, hour = (count(f"ephemeral_{each}_input_tokens", split) for each in ("5m", "1h"))
    thoughts = count("thinking_tokens", getattr(reported, "output_tokens_details", None))
    output = count("output_tokens")
    if output is None:
        return None
    earlier = before or Usage()
    cached = earlier.cached_input_tokens if read is None else read
    cache_write, cache_write_1h = earlier.cache_write_tokens, earlier.cache_write_1h_tokens
    if (short, hour) != (None, None) or total not in (None, cache_write):
        cache_write, cache_write_1h = check.cache_writes(total, short, hour)
    return check.usage(
        earlier.input_tokens if uncached is None else uncached + cached + cache_write,
        0 if is_begun else output,
        cached,
        earlier.reasoning_tokens if thoughts is None else thoughts,
        cache_write,
        cache_write_1h,
    )


class AnthropicAnswer(AnswerReader[RawMessageStreamEvent]):
    def __init__(self, call: Call, meter: OutputMeter, provider: Provider) -> None:
        super().__init__(call, meter, provider)
        self._blocks, self._is_counted = TurnCollector(meter), False

    def read(self, event: RawMessageStreamEvent) -> tuple[list[Delta], bool]:
        delta, last = self._delta(event), self.last
        is_new = self._blocks.add(event) | has_grown(last.usage, delta.usage)
        self.has_calls = self._blocks.has_calls
        self._is_counted |= event.type == "message_delta" and delta.usage is not None
        self.is_done |= event.type == "message_stop"
        self.last = Delta(
            finish=delta.finish or last.finish,
            usage=delta.usage or last.usage,
            model=delta.model or last.model,
            stop_sequence=delta.stop_sequence or last.stop_sequence,
        )
        self.has_words |= bool(delta.text)
        has_piece = bool(delta.text or delta.reasoning)
        return [delta] if has_piece else [], is_new or has_piece

    def turn(self, tools: WireTools) -> tuple[tuple[ToolCall, ...], object]:
        calls = self._blocks.calls(tools)
        return calls, self._blocks.turn()

    def end(self) -> Delta:
        if self.last.usage is not None and not self._is_counted:
            # the start of the stream reports only one token
            self._check.reject("Its last event counts no output tokens.")
        return super().end()

    def _delta(self, event: RawMessageStreamEvent) -> Delta:
        match event.type:
            case "message_start":
                model: object = getattr(event.message, "model", None)
                usage = usage_of(getattr(event.message, "usage", None), None, self._check, is_begun=True)
                return Delta(usage=usage, model=model if isinstance(model, str) else None)
            case "content_block_start":
                block = event.content_block
                if block.type == "thinking":
                    return Delta(reasoning=_words(block.thinking))
                return Delta(text=_words(block.text)) if block.type == "text" else Delta()
            case "content_block_delta":
                if event.delta.type == "text_delta":
                    return Delta(text=_words(event.delta.text))
                if event.delta.type == "thinking_delta":
                    return Delta(reasoning=_words(event.delta.thinking))
                return Delta()
            case "message_delta":
                usage = usage_of(getattr(event, "usage", None), self.last.usage, self._check)
                stop: object = getattr(event.delta, "stop_sequence", None)
                reason: object = getattr(event.delta, "stop_reason", None)
                return Delta(
                    finish=finish_of(reason, self._faults, usage),
                    usage=usage,
                    stop_sequence=stop if isinstance(stop, str) else None,
                )
            case _:
                return Delta()


def _words(value: object) -> str:
    """Return `value`, or raise ValueError if it is not text, which the SDK does not check."""
    if not isinstance(value, str):
        raise ValueError("The text of a piece is not a string.")
    return value
