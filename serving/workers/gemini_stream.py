"""Repair of Gemini's event stream before Google's SDK reads it, and the usage that it reports.

The SDK rejects a whole chunk, with the text in it, if a token count has the wrong type or a surrogate pair is split. It
also fails on comments. So this module

- replaces a count that is not an integer by -1, which `usage.py` rejects,
- joins split surrogate pairs,
- parses arguments of tool calls that are JSON text,
- drops comments and passes on complete events (`event_stream.py`),
- splits an answer that is not a stream into its chunks.
"""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any, cast

import httpx2
import msgspec
from google.genai import types
from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.characters import HalfJoiner, whole_value
from conductor.model.messages import ToolCall
from conductor.model.reply import Delta, FinishReason
from conductor.model.usage import Usage
from serving.workers.answer_stream import AnswerReader, Provider, finish_of
from serving.workers.chat_chunks import fields
from serving.workers.event_stream import Event, WholeEvents, json_of
from serving.workers.gemini_tools import PartCollector
from serving.workers.http_errors import error_text
from serving.workers.http_guard import MAX_ERROR_BYTES, BoundedBody
from serving.workers.output_limit import OutputMeter
from serving.workers.stream_errors import error_code, error_in_event, status_in_stream
from serving.workers.usage import UsageCheck, has_grown, integer
from serving.workers.wire_tools import WireTools, object_or_input

COUNTS = (
    "promptTokenCount",
    "toolUsePromptTokenCount",
    "candidatesTokenCount",
    "thoughtsTokenCount",
    "cachedContentTokenCount",
)
MARKS = (b'"error', b'"usageMetadata"', b'"functionCall"', b"\\ud", b"\\uD")
"""Byte sequences that show that a chunk may need a repair."""
NO_COUNT = -1
MOST = 2**62
"""Count that replaces larger ones. msgspec can encode it, and `usage.py` rejects it as implausible."""
MOST_VALUES = 20_000
"""Maximum JSON values of a chunk, which may have all arguments of a tool call."""


async def check_usage_counts(response: httpx2.Response) -> None:
    """Make a response yield only complete events that are repaired. This is a response hook."""
    if not isinstance(response.stream, httpx2.AsyncByteStream):
        return
    if response.status_code == HTTPStatus.OK:
        response.stream = WholeEvents(response.stream, MOST_VALUES, ChunkChecker().check)
    else:  # the SDK treats every other status as an error
        response.stream = BoundedBody(response.stream, MAX_ERROR_BYTES)


class ChunkChecker:
    """Repair of one answer's chunks, so that the SDK accepts them."""

    def __init__(self) -> None:
        self._halves = {False: HalfJoiner(), True: HalfJoiner()}
        """Objects that join split surrogate pairs, one for the answer (False) and one for thoughts (True)."""
        self._holds_half = False

    def check(self, event: Event) -> Iterator[Event]:
        """Yield the chunks in `event`, changed only where the SDK would reject them."""
        data = event.data
        is_list = data.startswith(b"[")
        if not (is_list or self._holds_half or any(mark in data for mark in MARKS)):
            yield Event(b"", data)  # without a name, because the SDK would parse it as JSON
            return
        try:
            value: object = json_of(data)
        except msgspec.DecodeError:
            yield Event(b"", data)  # the SDK raises the error
            return
        chunks: list[Any] = cast(list[Any], value) if isinstance(value, list) else [value]
        for chunk in chunks:
            body = fields(chunk)
            if "candidates" not in body and (error := error_in_event(body, event.name)):
                yield Event(b"", msgspec.json.encode({"error": _as_googles(error)}))
            else:
                yield Event(b"", self._check_chunk(chunk, data if chunk is value else b""))

    def _check_chunk(self, chunk: object, data: bytes) -> bytes:
        """Return the repaired chunk, or `data` if nothing has to be changed."""
        if not isinstance(chunk, dict):
            return data or msgspec.json.encode(chunk)
        body = cast(dict[str, Any], chunk)
        is_changed = _read_arguments(body) | _check_usage(body)
        if self._holds_half or b"\\ud" in data or b"\\uD" in data or not data:
            self._join_halves(body)
            is_changed = True
        return json.dumps(whole_value(body), ensure_ascii=False).encode() if is_changed else data

    def _join_halves(self, chunk: dict[str, Any]) -> None:
        candidates, parts = _dicts(chunk.get("candidates")), _parts_of(chunk)
        candidate = candidates[0] if candidates else {}
        is_last = bool(candidate.get("finishReason"))
        for part in parts:
            if isinstance(text := part.get("text"), str):
                part["text"] = self._halves[bool(part.get("thought"))].feed(text)
        ends = [
            {"text": rest, **({"thought": True} if is_thought else {})}
            for is_thought, halves in self._halves.items()
            if is_last and (rest := halves.feed("", is_last=True))
        ]
        if ends:
            candidate["content"] = {"role": "model", "parts": [*parts, *ends]}
        self._holds_half = any(each.holds_half for each in self._halves.values())


def _as_googles(error: Mapping[str, object]) -> dict[str, object]:
    """Return an error in Google's format, the only one that the SDK knows."""
    status = error["status"] if isinstance(error.get("status"), str) else error_code(error)
    text = error_text(error)
    return {**error, "status": status, "code": status_in_stream(error, text), "message": text}


def _dicts(value: object) -> list[dict[str, Any]]:
    listed = cast(list[object], value) if isinstance(value, list) else []
    return [cast(dict[str, Any], each) for each in listed if isinstance(each, dict)]


def _parts_of(chunk: dict[str, Any]) -> list[dict[str, Any]]:
    contents: list[Any] = [each.get("content") for each in _dicts(chunk.get("candidates"))]
    return [
        part for each in contents if isinstance(each, dict) for part in _dicts(cast(Any, each).get("parts"))
    ]


def _read_arguments(chunk: dict[str, Any]) -> bool:
    """Parse the arguments of tool calls if they are JSON text. Return whether any were."""
    calls = _dicts([part.get("functionCall") for part in _parts_of(chunk)])
    texts = [call for call in calls if isinstance(call.get("args"), str)]
    for call in texts:
        call["args"] = object_or_input(call["args"])
    return bool(texts)


def _check_usage(chunk: dict[str, Any]) -> bool:
    """Replace token counts that the SDK would reject. Return whether any were replaced."""
    reported = chunk.get("usageMetadata")
    usage = cast(dict[str, object], reported) if isinstance(reported, dict) else {}
    counts = {name: usage[name] for name in COUNTS if usage.get(name) is not None}
    if reported is None or (
        isinstance(reported, dict) and all(type(count) is int for count in counts.values())
    ):
        return False
    chunk["usageMetadata"] = {name: _readable(count) for name, count in counts.items()} or None
    return True


def _readable(count: object) -> int:
    number = integer(count)
    return NO_COUNT if number is None else min(number, MOST)


def usage_of(reported: types.GenerateContentResponseUsageMetadata | None, check: UsageCheck) -> Usage | None:
    """Return the usage that Gemini reports. It counts thoughts separately from the answer."""
    if reported is None:
        return None
    prompt, tools, answer, thoughts, cached = (
        check.count(name, getattr(reported, name))
        for name in (
            "prompt_token_count",
            "tool_use_prompt_token_count",
            "candidates_token_count",
            "thoughts_token_count",
            "cached_content_token_count",
        )
    )
    return check.usage(
        None if prompt is None else prompt + (tools or 0), (answer or 0) + (thoughts or 0), cached, thoughts
    )


class GeminiAnswer(AnswerReader[types.GenerateContentResponse]):
    def __init__(self, call: Call, meter: OutputMeter, provider: Provider) -> None:
        super().__init__(call, meter, provider)
        self._parts = PartCollector(meter)

    def read(self, event: types.GenerateContentResponse) -> tuple[list[Delta], bool]:
        delta, last = _delta(event, self._check), self.last
        is_new = self._parts.add(_candidate(event)) | has_grown(last.usage, delta.usage)
        self.has_calls = self._parts.has_calls
        usage = delta.usage or last.usage
        finish = self._finish(event, usage) or last.finish
        self.last = Delta(finish=finish, usage=usage, model=delta.model or last.model)
        self.has_words |= bool(delta.text)
        if not (delta.text or delta.reasoning):
            return [], is_new
        return [replace(delta, usage=None) if finish else delta], True  # the last delta has the final usage

    def turn(self, tools: WireTools) -> tuple[tuple[ToolCall, ...], object]:
        calls = self._parts.calls(tools)
        return calls, self._parts.turn(calls)

    def _finish(self, chunk: types.GenerateContentResponse, usage: Usage | None) -> FinishReason | None:
        candidate = _candidate(chunk)
        if candidate is None:
            blocked = chunk.prompt_feedback is not None and chunk.prompt_feedback.block_reason is not None
            return FinishReason.CONTENT_FILTER if blocked else None
        reason = candidate.finish_reason
        return finish_of(reason and reason.value, self._faults, usage)


def _candidate(chunk: types.GenerateContentResponse) -> types.Candidate | None:
    """Return the first candidate of a chunk, or None. Requests ask for one candidate, so others are ignored."""
    return next((each for each in chunk.candidates or () if not each.index), None)


def _delta(chunk: types.GenerateContentResponse, check: UsageCheck) -> Delta:
    candidate = _candidate(chunk)
    content = candidate.content if candidate else None
    parts = (content.parts if content else None) or []
    return Delta(
        text="".join(part.text or "" for part in parts if not part.thought),
        reasoning="".join(part.text or "" for part in parts if part.thought),
        usage=usage_of(chunk.usage_metadata, check),
        model=chunk.model_version,
    )
