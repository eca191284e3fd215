"""Worker for OpenAI's Responses API (`kind: openai` with `api: responses`).

API: https://platform.openai.com/docs/api-reference/responses-streaming. The provider is asked to store
nothing (`store: false`). Therefore the encrypted thoughts of a turn are sent back with it. The API has no
`stop` and no `seed` (see `known_models.py`).
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.answer_stream import AnswerReader, Provider, finish_of
from serving.workers.cache_marks import cache_control, limit_marks
from serving.workers.chat_chunks import fields, text_of
from serving.workers.event_stream import Event as SentEvent
from serving.workers.event_stream import EventReader, json_of
from serving.workers.http_guard import pieces_of
from serving.workers.openai import OpenAIWorker
from serving.workers.openai_options import cache_json, response_format_of
from serving.workers.openai_stream import cache_writes_in
from serving.workers.output_limit import OutputMeter
from serving.workers.provider_account import ProviderAccount
from serving.workers.responses_items import ItemCollector, input_json, tools_json
from serving.workers.stream_errors import error_in_event
from serving.workers.usage import UsageCheck
from serving.workers.wire_tools import WireTools

Event = dict[str, object]
TEXT = ("response.output_text.delta", "response.refusal.delta")
THOUGHTS = ("response.reasoning_summary_text.delta", "response.reasoning_text.delta")
SPEAKS = TEXT + THOUGHTS
ENDS = ("response.completed", "response.incomplete", "response.failed")
STATUSES = ("completed", "incomplete", "failed")


class OpenAIResponsesWorker(OpenAIWorker):
    """A model behind OpenAI's Responses API. Text completions and embeddings use their usual endpoints."""

    summarizes_thoughts = True

    def __init__(self, account: ProviderAccount) -> None:
        super().__init__(account)
        chat = self._endpoints["chat"]
        self._responses = chat.copy_with(path=chat.path.removesuffix("/chat/completions") + "/responses")

    def _deltas(self, call: Call, meter: OutputMeter) -> AsyncGenerator[Delta]:
        if call.site.operation == "text_completion":
            return super()._deltas(call, meter)
        answer = ResponsesAnswer(call, meter, self._provider)
        return answer.deltas(self._responses.host, self._events(call, answer))

    async def _events(self, call: Call, answer: "ResponsesAnswer") -> AsyncGenerator[list[Event]]:
        """Yield lists of events. Each list contains the events that one read from the network completed."""
        body, reader, timer = self._body(call), EventReader(), answer.timer
        if self._show_mark is cache_control:
            answer.note_marks(body)
        with self._wire_errors:
            async with self._response(self._responses, body) as response:
                timer.begin()
                async with aclosing(pieces_of(response)) as pieces:
                    async for piece in pieces:
                        events, fault = _read_all(reader.feed(piece))
                        timer.count(len(events))
                        yield events
                        if fault:
                            raise fault
                events, fault = _read_all(reader.end())
                yield events
                if fault:
                    raise fault

    def _body(self, call: Call) -> dict[str, Any]:
        thinks = self._account.accepts.thinks(call.sampling.effort)
        messages = self.origin.messages(call, keep_foreign=not thinks)
        tools = WireTools(call.tools, history=any(message.tool_calls for message in messages))
        with self._faults.in_request():
            items = input_json(messages, takes_custom=self._is_openai, show_mark=self._show_mark)
        format = fields(response_format_of(call))
        text: dict[str, object] = (
            {"format": {"type": format["type"], **fields(format.get("json_schema"))}} if format else {}
        )
        if call.sampling.options.verbosity is not None:
            text["verbosity"] = call.sampling.options.verbosity
        optional: dict[str, object] = {
            "max_output_tokens": call.sampling.max_output_tokens,
            "temperature": call.sampling.temperature,
            "top_p": call.sampling.top_p,
            "reasoning": {"effort": call.sampling.effort} if call.sampling.effort else None,
            "include": ["reasoning.encrypted_content"] if thinks else None,
            "text": text or None,
            **cache_json(call.sampling.options.prompt_cache, sends_conversation=self._sends_conversation),
            **tools_json(tools, takes_custom=self._is_openai),
        }
        request = {"model": self._account.model, "input": items, "stream": True, "store": False}
        options = {name: value for name, value in optional.items() if value is not None}
        request |= options | dict(self._account.extra_body)
        if self._show_mark is cache_control:
            limit_marks(request)
        return request


class ResponsesAnswer(AnswerReader[Event]):
    def __init__(self, call: Call, meter: OutputMeter, provider: Provider) -> None:
        super().__init__(call, meter, provider)
        self._items, self._is_refused, self._has_thoughts = ItemCollector(meter), False, False

    def read(self, event: Event) -> tuple[list[Delta], bool]:
        is_new = self._items.add(event)
        self._is_refused |= event.get("type") == "response.refusal.delta"
        self.last = self._updated(event)
        delta = _words(event, self.last.model)
        if self.last.finish is not None and event.get("type") in ENDS:
            self.is_done = True
            self._items.end(fields(event.get("response")).get("output"))
            text, thoughts = self._items.words  # for servers that do not send them in pieces
            missed = Delta("" if self.has_words else text, "" if self._has_thoughts else thoughts)
            delta = missed if missed.text or missed.reasoning else None
        if delta is None:
            return [], is_new
        self.has_words |= bool(delta.text)
        self._has_thoughts |= bool(delta.reasoning)
        return [delta], True

    def turn(self, tools: WireTools) -> tuple[tuple[ToolCall, ...], object]:
        return self._items.calls(tools), self._items.items

    def end(self) -> Delta:
        if self._is_refused or self._items.is_refused:
            self.last = replace(self.last, finish=FinishReason.CONTENT_FILTER)
        self.has_calls = self._items.has_calls
        return super().end()

    def _updated(self, event: Event) -> Delta:
        """Return the last delta, updated from this event. Raise a WorkerError that it reports."""
        kind, response, last = event.get("type"), fields(event.get("response")), self.last
        error = response.get("error") or (
            error_in_event(event) if kind in (None, "error") else event.get("error")
        )
        usage = _usage(response.get("usage"), self._check) if kind in ENDS or error else None
        if error:
            raise self._faults.in_stream(error)
        model = response.get("model")
        last = replace(last, model=model if isinstance(model, str) and model else last.model)
        if kind not in ENDS:
            return last
        return replace(last, finish=self._finish_of(str(kind), response, usage), usage=usage)

    def _finish_of(self, kind: str, response: dict[str, object], usage: Usage | None) -> FinishReason:
        if kind == "response.completed":
            return FinishReason.STOP
        reason = fields(response.get("incomplete_details")).get("reason")
        finish = finish_of(reason, self._faults, usage)
        if finish is None or finish in (FinishReason.STOP, FinishReason.TOOL_CALLS):
            raise self._faults.odd_end(reason, usage)
        return finish


def _read_all(wire_events: list[SentEvent]) -> tuple[list[Event], ValueError | None]:
    """Parse events up to the first malformed one. Return them, and the error of the malformed one or None."""
    events = list[Event]()
    for each in wire_events:
        try:
            events.append(_read(each))
        except ValueError as exc:  # includes msgspec's errors
            return events, exc
    return events, None


def _read(event: SentEvent) -> Event:
    """Parse an event as a JSON object. A complete response without a stream becomes the last event of one."""
    value: object = json_of(event.data)
    if not isinstance(value, dict):
        raise ValueError("An event is not an object.")
    body = cast(Event, value)
    if body.get("object") == "response":
        status = str(body.get("status"))
        return {"type": f"response.{status if status in STATUSES else 'completed'}", "response": body}
    return (
        body if body.get("type") or not event.name else body | {"type": event.name.decode("utf-8", "replace")}
    )


def _words(event: Event, model: str | None) -> Delta | None:
    kind = event.get("type")
    if kind not in SPEAKS or not (text := text_of(event.get("delta"))):
        return None
    if kind in TEXT:
        return Delta(text, model=model)
    return Delta(reasoning=text, model=model)


def _usage(reported: object, check: UsageCheck) -> Usage | None:
    usage = fields(reported)
    if not usage:
        return None
    of_input, of_output = (
        fields(usage.get("input_tokens_details")),
        fields(usage.get("output_tokens_details")),
    )
    return check.usage(
        check.count("input_tokens", usage.get("input_tokens")),
        check.count("output_tokens", usage.get("output_tokens")),
        check.count("cached_tokens", of_input.get("cached_tokens")),
        check.count("reasoning_tokens", of_output.get("reasoning_tokens")),
        *cache_writes_in(of_input, check),
    )
