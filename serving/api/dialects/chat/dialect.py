"""Dialect of OpenAI's Chat Completions: turns a body into a request, and a run into an answer, whole or
streamed.
"""

import time
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from conductor.errors import BadTask
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.model.messages import (
    NO_TOOLS,
    File,
    Image,
    Message,
    Part,
    PendingCall,
    Text,
    ToolCall,
    ToolResult,
    thoughts_of,
)
from conductor.model.operation import Likely, TokenLogprob
from conductor.model.reply import FinishReason
from conductor.run.events import AnswerDelta, Event, StepFirstToken
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Dialect, Encoder
from serving.api.dialects.chat.schema import (
    ChatMessage,
    ContentPart,
    FilePart,
    ImagePart,
    RefusalPart,
    TextPart,
    UnservedPart,
    read,
    read_format,
)
from serving.api.dialects.chat.tools import call_json
from serving.api.dialects.read_body import mark_last
from serving.api.error_json import error_json
from serving.api.record_json import dumps, model_name, summary, usage
from serving.api.request import ApiRequest, tier_of

Json = dict[str, Any]
SHOWS_PICTURES = ("user", "tool")
"""Roles of messages that may contain pictures and files."""


def to_message(index: int, message: ChatMessage) -> Message:
    """Convert the message at `index`. Raise BadTask if it is empty or does not fit its role."""
    role = "system" if message.role == "developer" else message.role
    calls = _calls(index, message)
    if role == "tool":
        return Message(role, (_result(index, message),))
    thoughts = thoughts_of(dict(message)) if role == "assistant" else {}
    if message.content is None or message.content == []:
        if role == "assistant":
            refusal = (Text(message.refusal),) if message.refusal else ()
            return mark_last([Message(role, (*refusal, *calls), thoughts=thoughts)], message.mark)[0]
        raise BadTask(f"messages[{index}].content must not be empty.", param=f"messages[{index}].content")
    return mark_last([Message(role, (*_parts(index, message), *calls), thoughts=thoughts)], message.mark)[0]


def _calls(index: int, message: ChatMessage) -> tuple[ToolCall, ...]:
    if message.tool_calls and message.role != "assistant":
        place = f"messages[{index}].tool_calls"
        raise BadTask(f"{place}: only assistant messages can have tool calls.", param=place)
    return tuple(call.to_call() for call in message.tool_calls or ())


def _result(index: int, message: ChatMessage) -> ToolResult:
    if message.tool_call_id is None:
        place = f"messages[{index}].tool_call_id"
        raise BadTask(
            f"{place} is required. Send the id of the tool call that this message answers.", param=place
        )
    parts = tuple(part for part in _parts(index, message) if isinstance(part, Text | Image | File))
    return ToolResult(message.tool_call_id, parts, cache=message.mark)


def _parts(index: int, message: ChatMessage) -> tuple[Part, ...]:
    if message.content is None or isinstance(message.content, str):
        is_left_out = not message.content and (message.role == "tool" or message.tool_calls)
        return () if is_left_out else (Text(message.content or ""),)
    for number, part in enumerate(message.content):
        place = f"messages[{index}].content[{number}]"
        if isinstance(part, ImagePart) and message.role not in SHOWS_PICTURES:
            raise BadTask(f"{place}: only user and tool messages can contain images.", param=place)
        if isinstance(part, FilePart) and message.role not in SHOWS_PICTURES:
            raise BadTask(f"{place}: only user and tool messages can contain files.", param=place)
        if isinstance(part, RefusalPart) and message.role != "assistant":
            raise BadTask(f"{place}: only assistant messages can contain refusals.", param=place)
    return tuple(
        _part(part, f"messages[{index}].content[{number}]") for number, part in enumerate(message.content)
    )


def _part(part: ContentPart, place: str) -> Part:
    match part:
        case ImagePart():
            return Image(part.image_url.url, part.image_url.detail, part.mark)
        case FilePart():
            try:
                return replace(part.file.to_file(), cache=part.mark)
            except ValueError as exc:
                raise BadTask(f"{place}.file.file_data: {exc}.", param=f"{place}.file.file_data") from exc
        case TextPart() | RefusalPart():
            return Text(part.text, part.mark)
        case UnservedPart():
            raise AssertionError("validation rejects these parts")


class ChatDialect(Dialect):
    """OpenAI's Chat Completions."""

    def parse(self, body: bytes) -> ApiRequest:
        request = read(body)
        has_tools = (
            bool(request.tools) or request.tool_choice is not None or request.parallel_tool_calls is False
        )
        tools, left_out = request.toolset if has_tools else (NO_TOOLS, ())
        return ApiRequest(
            model=request.model,
            conversation=tuple(to_message(index, message) for index, message in enumerate(request.messages)),
            sampling=Sampling(
                max_output_tokens=request.max_completion_tokens or request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=tuple(request.stop or ()),
                seed=request.seed,
                options=replace(request.options, prompt_cache=request.prompt_cache),
                **request.samplers,
            ),
            effort=request.reasoning_effort,
            podium=request.podium,
            stream=bool(request.stream),
            include_usage=request.stream_options is not None and request.stream_options.include_usage,
            tools=tools,
            answer_format=read_format(request.response_format),
            priority=request.priority,
            n=request.n or 1,
            left_out=(*left_out, *request.noted),
            conversation_name=request.conversation_name,
        )

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        return completion(records, call_id, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> Encoder:
        return ChatEncoder(run, request, call_id)


def logprobs_json(tokens: Sequence[TokenLogprob]) -> dict[str, Any] | None:
    if not tokens:
        return None
    return {"content": content_json(tokens), "refusal": None}


def content_json(tokens: Sequence[TokenLogprob]) -> list[dict[str, Any]]:
    return [_likely(each) | {"top_logprobs": [*map(_likely, each.top)]} for each in tokens]


def _likely(each: TokenLogprob | Likely) -> dict[str, Any]:
    raw = each.token.encode("utf-8", "surrogatepass")
    return {"token": each.token, "logprob": each.logprob, "bytes": list(raw)}


def completion(records: RunRecords, call_id: CallId, *, trace: bool) -> Json:
    """Return the `chat.completion` for a run that has finished or waits for tool results."""
    record = records.record
    turns = record.new_turns if record.status == "waiting" else ()
    answering = turns[-1].result if turns else record.answering
    reasoning = answering.reasoning if answering else ""
    calls = [call_json(call_id(pending.number), pending.call) for pending in record.pending]
    content = record.shown or (None if calls else "")
    message: Json = {"role": "assistant", "content": content, "refusal": None, "annotations": []}
    if calls:
        message["tool_calls"] = calls
    if reasoning:
        message["reasoning_content"] = reasoning
    choice: Json = {
        "index": 0,
        "message": message,
        "logprobs": logprobs_json(record.answering.logprobs if record.answering else ()),
        "finish_reason": "tool_calls" if calls else record.finish.value if record.finish else "stop",
    }
    return {
        "id": chat_id(record.id),
        "object": "chat.completion",
        "created": int(record.created),
        "model": model_name(record),
        "choices": [choice],
        "service_tier": tier_of(record.task.priority),
        "usage": usage(record),
        "podium": summary(record, records.inner, trace=trace),
    }


def chat_id(workflow_id: str) -> str:
    """Return OpenAI's id for the answer of a run."""
    return "chatcmpl-" + workflow_id.removeprefix("wf_")


DONE = b"data: [DONE]\n\n"
HEARTBEAT = b": still working\n\n"


class ChatEncoder(Encoder):
    """Encodes events as `chat.completion.chunk`s of a few dictionaries, without Pydantic."""

    def __init__(self, run: Run, request: ApiRequest, call_id: CallId) -> None:
        super().__init__(run, request.podium, call_id)
        self._with_usage = request.include_usage
        self.head: Json = {
            "id": chat_id(run.record.id),
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": run.record.model,
        }

    def begin(self) -> bytes:
        """Return the first chunk, which has the role."""
        return self._delta({"role": "assistant", "content": ""})

    def heartbeat(self) -> bytes:
        return HEARTBEAT

    def _answer(self, piece: AnswerDelta) -> bytes:
        delta: Json = {"content": piece.text} if piece.text else {}
        return self._delta(
            delta | ({"reasoning_content": piece.reasoning} if piece.reasoning else {}), piece.logprobs
        )

    def _finish(self, finish: FinishReason) -> bytes:
        return self.last_chunks(_last_choice(finish.value))

    def _suspend(self, calls: tuple[PendingCall, ...]) -> bytes:
        """Return one chunk per call, with its complete arguments, and the end of the stream."""
        calls_json = [call_json(self._call_id(pending.number), pending.call) for pending in calls]
        chunks = [
            self._delta({"tool_calls": [{"index": index} | call]}) for index, call in enumerate(calls_json)
        ]
        return b"".join(chunks) + self.last_chunks(_last_choice(FinishReason.TOOL_CALLS.value))

    def _fail(self, failure: Failure) -> bytes:
        return _data({"error": error_json(failure, self._run.record.id)}) + DONE

    def _progress(self, event: Event) -> bytes:
        self._name_worker(event)
        return super()._progress(event)

    def _name_worker(self, event: Event) -> None:
        """Set `model` of the chunks when the worker that answers is known."""
        if isinstance(event, StepFirstToken):
            self.head["model"] = model_name(self._run.record)

    def _show(self, progress: Json) -> bytes:
        return self.chunk({"choices": [], "podium": progress})

    def _think(self, text: str) -> bytes:
        return self._delta({"reasoning_content": text})

    def last_chunks(self, choice: Json) -> bytes:
        """Return the end of the stream: the choice's last chunk, the run's summary, and any usage."""
        record = self._run.record
        last = self.chunk(
            {
                "choices": [choice],
                "podium": summary(record, self._run.records.inner, trace=self._podium.trace),
            }
        )
        if not self._with_usage:
            return last + DONE
        return last + _data(self.head | {"choices": [], "usage": usage(record)}) + DONE

    def _delta(self, delta: Json, logprobs: tuple[TokenLogprob, ...] = ()) -> bytes:
        likely = logprobs_json(logprobs)
        return self.chunk(
            {"choices": [{"index": 0, "delta": delta, "logprobs": likely, "finish_reason": None}]}
        )

    def chunk(self, rest: Json) -> bytes:
        return _data(self.head | rest | ({"usage": None} if self._with_usage else {}))


def _last_choice(reason: str) -> Json:
    return {"index": 0, "delta": {}, "logprobs": None, "finish_reason": reason}


def _data(value: Json) -> bytes:
    return b"data: " + dumps(value) + b"\n\n"
