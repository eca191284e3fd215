"""Conversion of the input items of Responses to messages, and back.

Tool calls and their results are matched by `call_id` alone, because clients may send their history back in a
changed form.
"""

import base64
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, cast

from msgspec.structs import replace
from pydantic import Field

from conductor.errors import BadTask, quote
from conductor.model.messages import File, Image, Message, Text, ToolCall, ToolResult
from serving.api.attachments import NO_ADDRESS, file_by_id, to_file
from serving.api.dialects.chat.schema import MOST_PARTS, ImageUrl
from serving.api.dialects.read_body import LenientModel, MarkFields, NullableText, PartCount
from serving.api.dialects.responses.compaction import unpack
from serving.api.dialects.responses.schema import PACKED, read_part
from serving.api.dialects.responses.segments import item_id, response_id

Json = dict[str, Any]
Parts = list[Text | Image | File]
Refer = Callable[[str, str], Sequence[Message]]
"""Function that returns the messages of an `item_reference`, given its id and its place in the request."""
HOSTED = frozenset({
    "code_interpreter_call", "file_search_call", "mcp_approval_request", "mcp_approval_response", "mcp_call",
    "mcp_list_tools", "tool_search_call", "tool_search_output", "web_search_call",
})  # fmt: skip
"""Items of other servers' tools. The messages around them have the results."""
PREFIXES = {"message": "msg", "custom_tool_call": "ctc", "custom_tool_call_output": "ctc"}


class _Part(MarkFields):
    type: str = Field(max_length=64)
    text: str | None = None
    refusal: str | None = None
    image_url: str | None = None
    file_id: str | None = Field(default=None, max_length=128)
    file_data: str | None = None
    file_url: str | None = None
    filename: str | None = None
    detail: Literal["auto", "low", "high", "original"] | None = None


Content = str | Annotated[list[_Part], Field(fail_fast=True, max_length=MOST_PARTS)]


class _MessageItem(LenientModel):
    role: Literal["user", "system", "developer", "assistant"]
    content: Content


CallId = Annotated[str, Field(min_length=1, max_length=1024)]


class _FunctionCall(LenientModel):
    call_id: CallId
    name: str
    arguments: str = ""
    namespace: NullableText = ""


class _CustomCall(_FunctionCall):
    arguments: str = Field(default="", alias="input")


class _Output(LenientModel):
    call_id: CallId
    output: Content


class _Reasoning(LenientModel):
    summary: list[Any] | None = None
    content: list[Any] | None = None


class _Reference(LenientModel):
    id: str = Field(max_length=128)


class _Compaction(LenientModel):
    encrypted_content: str


@dataclass(slots=True)
class Transcript:
    """Messages of a conversation, built from input items one by one.

    Attributes:
        left_out: a note for each item that is not supported and was omitted.
        packed: count of the JSON inside the compaction items. None leaves these items out.
    """

    messages: list[Message] = field(default_factory=list[Message])
    left_out: list[str] = field(default_factory=list[str])
    part_count: PartCount | None = None
    _thoughts: str = ""
    """Text of the reasoning items since the last turn."""

    def add(self, items: str | Sequence[Json], refer: Refer) -> None:
        """Add the `input` of a request. The BadTask names an invalid item's place."""
        if isinstance(items, str):
            self.messages.append(Message.of("user", items))
            return
        for index, item in enumerate(items):
            self.add_item(item, f"input[{index}]", refer)

    def add_item(self, item: Json, at: str, refer: Refer) -> None:
        """Add one item. `at` is its place in the request. It raises the same errors as `add`."""
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                self._add_message(read_part(_MessageItem, item, at), at)
            case "function_call":
                call = read_part(_FunctionCall, item, at)
                self.add_call(ToolCall(call.call_id, call.name, call.arguments, namespace=call.namespace))
            case "custom_tool_call":
                call = read_part(_CustomCall, item, at)
                self.add_call(ToolCall(call.call_id, call.name, call.arguments, "custom", call.namespace))
            case "function_call_output" | "custom_tool_call_output":
                result = read_part(_Output, item, at)
                self.add_result(ToolResult(result.call_id, tuple(_parts(result.output, f"{at}.output"))))
            case "reasoning":
                self._thoughts += _thoughts_of(read_part(_Reasoning, item, at))
            case "item_reference":
                self.messages += refer(read_part(_Reference, item, at).id, at)
            case str() if kind in PACKED:
                content = read_part(_Compaction, item, at).encrypted_content
                self.messages += unpack(content, at, self.part_count) if self.part_count else ()
            case str() if kind in HOSTED:
                self.left_out.append(
                    f"{at} was ignored, because items of type {quote(kind)} are not supported."
                )
            case _:
                raise BadTask(
                    f"{at}.type: items of type {quote(kind)} are not supported.", param=f"{at}.type"
                )

    def _add_message(self, item: _MessageItem, at: str) -> None:
        role = "system" if item.role == "developer" else cast(Any, item.role)
        parts = _parts(item.content, f"{at}.content")
        if not parts and role != "assistant":
            raise BadTask(f"{at}.content must not be empty.", param=f"{at}.content")
        if role != "user" and any(isinstance(part, Image | File) for part in parts):
            raise BadTask(
                f"{at}.content: only user messages can contain images and files.", param=f"{at}.content"
            )
        if role != "assistant":
            self._thoughts = ""
        self.messages.append(Message(role, tuple(parts)))

    def add_call(self, call: ToolCall) -> None:
        """Add a call with its reasoning to the current turn of the assistant, or to a new one."""
        is_open = bool(self.messages) and self.messages[-1].role == "assistant"
        turn = self.messages.pop() if is_open else Message("assistant", ())
        thoughts = {"reasoning_content": self._thoughts} if self._thoughts else turn.thoughts
        self._thoughts = ""
        self.messages.append(replace(turn, parts=(*turn.parts, call), thoughts=thoughts))

    def add_result(self, result: ToolResult) -> None:
        """Add a tool result to the previous message if that has tool results, or else to a new message."""
        if self.messages and self.messages[-1].role == "tool":
            self.messages.append(Message("tool", (*self.messages.pop().parts, result)))
        else:
            self.messages.append(Message("tool", (result,)))


def _thoughts_of(item: _Reasoning) -> str:
    """Return the text of a reasoning item, or its summary if it has no text."""
    texts = (
        cast(Json, each).get("text") for each in item.content or item.summary or () if isinstance(each, dict)
    )
    return "".join(text for text in texts if isinstance(text, str))


def _parts(content: Content, at: str) -> Parts:
    if isinstance(content, str):
        return [Text(content)] if content else []
    return [_part(part, f"{at}[{index}]") for index, part in enumerate(content)]


def _part(part: _Part, at: str) -> Text | Image | File:
    match part.type:
        case "input_text" | "output_text" | "text" | "summary_text":
            if part.text is None:
                raise BadTask(f"{at}.text is required.", param=f"{at}.text")
            return Text(part.text, part.mark)
        case "refusal":
            return Text(part.refusal or "")
        case "input_image":
            if part.image_url is None:
                raise BadTask(
                    f"{at}: images by `file_id` are not supported. Send `image_url` instead.",
                    param=f"{at}.file_id",
                )
            detail = "high" if part.detail == "original" else part.detail
            return replace(_picture(part.image_url, detail, f"{at}.image_url"), cache=part.mark)
        case "input_file":
            return replace(_file(part, at), cache=part.mark)
        case _:
            raise BadTask(
                f"{at}.type: parts of type {quote(part.type)} are not supported. Send text, images or files.",
                param=f"{at}.type",
            )


def _picture(url: str, detail: str | None, at: str) -> Image:
    try:
        picture = read_part(ImageUrl, {"url": url, "detail": detail}, "")
    except BadTask as exc:  # names the field `url`, which is `image_url` here
        why = exc.message.removeprefix(str(exc.param))
        raise BadTask(f"{at}{why}", param=at) from exc
    return Image(picture.url, picture.detail)


def _file(part: _Part, at: str) -> File:
    if part.file_url is not None:
        raise BadTask(f"{at}.file_url: {NO_ADDRESS}.", param=f"{at}.file_url")
    if part.file_id:
        return file_by_id(part.file_id, part.filename)
    try:
        return to_file(part.filename, part.file_data or "")
    except ValueError as exc:
        raise BadTask(f"{at}.file_data: {exc}.", param=f"{at}.file_data") from exc


def _file_json(file: File) -> Json:
    """Return a file as a part of an input item, with its content as it was sent or stored."""
    url = file.url
    if file.text is not None:
        url = f"data:text/plain;base64,{base64.b64encode(file.text.encode()).decode()}"
    return {"type": "input_file", "filename": file.name, "file_data": url}


def items_of(message: Message, index: int, run_id: str, part: int, custom: Collection[str]) -> list[Json]:
    """Return the input items that a message was made from, as far as possible. `index` is that of its first
    item, `part` that of the response in the run, `custom` has ids of calls of custom tools.
    """
    items: list[Json] = []
    content: list[Json] = []
    for each in message.parts:
        match each:
            case Text():
                content.append(_text_json(each, message.role))
            case Image():
                content.append({"type": "input_image", "image_url": each.url, "detail": each.detail})
            case File():
                content.append(_file_json(each))
            case ToolCall():
                items.append(call_item(each, each.id))
            case ToolResult():
                items.append(_result_item(each, is_custom=each.id in custom))
    if content:
        items.insert(0, {"type": "message", "role": message.role, "status": "completed", "content": content})
    response = response_id(run_id, part)
    prefixes = [PREFIXES.get(item["type"], "fc") for item in items]
    return [
        {"id": item_id(prefix, response, index + n, is_input=True)} | item
        for n, (prefix, item) in enumerate(zip(prefixes, items, strict=True))
    ]


def _text_json(part: Text, role: str) -> Json:
    if role == "assistant":
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": part.text}


def call_item(call: ToolCall, call_id: str) -> Json:
    namespace = {"namespace": call.namespace} if call.namespace else {}
    if call.kind == "custom":
        kind: Json = {
            "type": "custom_tool_call",
            "call_id": call_id,
            "name": call.name,
            "input": call.arguments,
        }
    else:
        kind = {"type": "function_call", "call_id": call_id, "name": call.name, "arguments": call.arguments}
    return kind | namespace | {"status": "completed"}


def _result_part(part: Text | Image | File) -> Json:
    match part:
        case Text():
            return {"type": "input_text", "text": part.text}
        case Image():
            return {"type": "input_image", "image_url": part.url, "detail": part.detail}
        case File():
            return _file_json(part)


def _result_item(result: ToolResult, *, is_custom: bool) -> Json:
    parts = [_result_part(part) for part in result.parts]
    is_text = all(isinstance(part, Text) for part in result.parts)
    return {
        "type": "custom_tool_call_output" if is_custom else "function_call_output",
        "call_id": result.id,
        "output": result.text if is_text else parts,
        "status": "completed",
    }
