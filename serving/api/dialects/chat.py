"""OpenAI's Chat Completions as a dialect."""

from dataclasses import replace
from typing import Any

from conductor.errors import PodiumError
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.run.record import RunRecords
from conductor.run.run import Run
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.chat_completion import completion
from serving.api.dialects.chat_errors import chat_error_body
from serving.api.dialects.chat_format import read_format
from serving.api.dialects.chat_messages import to_message
from serving.api.dialects.chat_schema import read
from serving.api.dialects.chat_stream import ChatEncoder
from serving.api.request import ApiRequest


class ChatDialect(Dialect):
    """See `Dialect`."""

    def parse(self, body: bytes) -> ApiRequest:
        """See `Dialect.parse`."""
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
        """See `Dialect.body`."""
        return completion(records, call_id, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> ChatEncoder:
        """See `Dialect.encoder`."""
        return ChatEncoder(run, request, call_id)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """See `Dialect.error_body`."""
        return chat_error_body(error, workflow_id)
