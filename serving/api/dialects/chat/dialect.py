"""Dialect of OpenAI's Chat Completions: turns a body into a request."""

from typing import Any

from msgspec.structs import replace

from conductor.errors import BadTask, PodiumError
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.model.messages import File, Image, Message, Part, Text, ToolCall, ToolResult
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.chat.encoding import ChatEncoder, chat_error_body, completion
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
from serving.api.dialects.read_body import mark_last
from serving.api.request import ApiRequest

SHOWS_PICTURES = ("user", "tool")
"""Roles of messages that may contain pictures and files."""


def to_message(index: int, message: ChatMessage) -> Message:
    """Convert the message at `index`.

    Raises:
        BadTask: the message is empty, or has parts or calls that its role must not have.
    """
    role = "system" if message.role == "developer" else message.role
    calls = _calls(index, message)
    if role == "tool":
        return Message(role, (_result(index, message),))
    thoughts = _thoughts(message) if role == "assistant" else {}
    if message.content is None or message.content == []:
        if role == "assistant":
            refusal = (Text(message.refusal),) if message.refusal else ()
            return mark_last([Message(role, (*refusal, *calls), thoughts=thoughts)], message.mark)[0]
        raise BadTask(f"messages[{index}].content must not be empty.", param=f"messages[{index}].content")
    return mark_last([Message(role, (*_parts(index, message), *calls), thoughts=thoughts)], message.mark)[0]


def _thoughts(message: ChatMessage) -> dict[str, Any]:
    """Return the reasoning in a message, by the names of its fields."""
    kinds = {"reasoning_content": str, "reasoning": str, "reasoning_details": list}
    named = {name: getattr(message, name) for name in kinds}
    return {name: value for name, value in named.items() if value and isinstance(value, kinds[name])}


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
        tools, left_out = request.toolset
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
        )

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        return completion(records, call_id, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> ChatEncoder:
        return ChatEncoder(run, request, call_id)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        return chat_error_body(error, workflow_id)
