"""OpenAI's Chat Completions as a dialect."""

from typing import Any

from conductor.errors import BadTask, PodiumError
from conductor.model.failure import Failure
from conductor.model.messages import Image, Message, Part, Text
from conductor.model.worker import Sampling
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId
from serving.api.dialects.chat_completion import completion
from serving.api.dialects.chat_errors import chat_error_body
from serving.api.dialects.chat_format import read_format
from serving.api.dialects.chat_schema import ChatMessage, ImagePart, RefusalPart, read
from serving.api.dialects.chat_stream import ChatEncoder
from serving.api.request import ApiRequest


class ChatDialect:
    """See `Dialect`."""

    def parse(self, body: bytes) -> ApiRequest:
        """See `Dialect.parse`."""
        request = read(body)
        return ApiRequest(
            model=request.model,
            conversation=tuple(_message(index, message) for index, message in enumerate(request.messages)),
            sampling=Sampling(
                max_output_tokens=request.max_completion_tokens or request.max_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                stop=tuple(request.stop or ()),
                seed=request.seed,
            ),
            effort=request.reasoning_effort,
            podium=request.podium,
            stream=bool(request.stream),
            include_usage=request.stream_options is not None and request.stream_options.include_usage,
            answer_format=read_format(request.response_format),
        )

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        """See `Dialect.body`."""
        return completion(records, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> ChatEncoder:
        """See `Dialect.encoder`."""
        return ChatEncoder(run, request)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """See `Dialect.error_body`."""
        return chat_error_body(error, workflow_id)


def _message(index: int, message: ChatMessage) -> Message:
    role = "system" if message.role == "developer" else message.role
    if message.content is None or message.content == []:
        if role == "assistant":
            return Message.of(role, message.refusal) if message.refusal else Message(role, ())
        raise BadTask(f"messages[{index}].content is empty.", param=f"messages[{index}].content")
    if isinstance(message.content, str):
        return Message.of(role, message.content)
    for number, part in enumerate(message.content):
        place = f"messages[{index}].content[{number}]"
        if isinstance(part, ImagePart) and role != "user":
            raise BadTask(f"{place}: only messages of the user can show pictures.", param=place)
        if isinstance(part, RefusalPart) and role != "assistant":
            raise BadTask(f"{place}: only messages of the assistant can be refusals.", param=place)
    parts: list[Part] = [
        Image(part.image_url.url, part.image_url.detail) if isinstance(part, ImagePart) else Text(part.text)
        for part in message.content
    ]
    return Message(role, tuple(parts))
