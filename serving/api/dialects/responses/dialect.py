"""Dialect of OpenAI's Responses. `routes.py` has the other routes of a response."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from conductor.errors import BadTask, BudgetExceeded, PodiumError, Unauthenticated, quote
from conductor.model.call import AnswerFormat, Sampling
from conductor.model.failure import Failure
from conductor.model.messages import Message
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from serving import errors
from serving.accounts.caller import Caller
from serving.api.answer_format import ANY_OBJECT, read_schema
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.read_body import read_body
from serving.api.dialects.responses.earlier import CallersRuns, conversation_of
from serving.api.dialects.responses.items import Transcript
from serving.api.dialects.responses.resource import echo_of
from serving.api.dialects.responses.schema import ResponsesRequest, TextFormat, check_served, remedy
from serving.api.dialects.responses.segments import echo_changes
from serving.api.dialects.responses.stream import ResponsesEncoder, show
from serving.api.dialects.responses.tools import read_tools
from serving.api.request import ApiRequest, Podium, priority_of
from serving.sessions.service import Service

QUOTA = "insufficient_quota"
TOO_MANY = 429


@dataclass(frozen=True, slots=True)
class SentRequest(ApiRequest):
    """Parsed request whose earlier turns are not loaded yet."""

    body: ResponsesRequest | None = None


class ResponsesDialect(Dialect):
    """OpenAI's Responses."""

    turns_field, format_field = "input", "text.format"
    joins = True
    tells_again = True

    def parse(self, body: bytes) -> ApiRequest:
        request = read_body(ResponsesRequest, body, remedy)
        check_served(request)
        tools, left_out = read_tools(
            request.tools, request.tool_choice, parallel=request.parallel_tool_calls is not False
        )
        transcript = Transcript()
        transcript.add(request.input, _later)
        return SentRequest(
            model=request.model,
            conversation=(*_instructions(request), *transcript.messages),
            sampling=Sampling(
                max_output_tokens=request.max_output_tokens,
                temperature=request.temperature,
                top_p=request.top_p,
                options=request.options,
                **request.samplers,
            ),
            logprobs_field="top_logprobs" if request.top_logprobs else "include",
            effort=request.reasoning.effort,
            podium=_podium(request),
            stream=bool(request.stream),
            include_usage=True,
            tools=tools,
            answer_format=_answer_format(request.text.format),
            priority=priority_of(request.service_tier),
            left_out=(*left_out, *transcript.left_out, *_without_effect(request), *request.extras),
            conversation_name=request.conversation_name,
            body=request,
        )

    async def complete(self, request: ApiRequest, service: Service, caller: Caller) -> ApiRequest:
        """Load earlier turns and referenced items; see `Dialect.complete`."""
        body = request.body if isinstance(request, SentRequest) else None
        assert body is not None, "this dialect parsed the request"
        if body.refers:
            async with service.sessions.admission.check_rate(caller):
                earlier = await conversation_of(body, CallersRuns(service, caller))
        else:
            earlier = await conversation_of(body, CallersRuns(service, caller))
        conversation = (*_instructions(body), *earlier.messages)
        return replace(
            request,
            conversation=conversation,
            conversation_name=earlier.name or request.conversation_name,
            places=("input",) * len(conversation),
            echo=echo_of(body, request.podium.progress, earlier.n_earlier),
        )

    def check_resumes(self, request: ApiRequest, record: Record) -> None:
        """Check that the request's `conversation`, if it has one, is that of the waiting run."""
        conversation = _conversation(request.echo)
        if conversation is None or conversation == (current := _conversation(record.task.echo)):
            return
        owner = "no conversation" if current is None else quote(current)
        message = f"conversation: the run that called these tools belongs to {owner}. Send the same conversation, or remove the field."
        raise BadTask(message, param="conversation")

    def new_echo(self, request: ApiRequest, record: Record) -> Mapping[str, Any]:
        return echo_changes(record.task.echo, request.echo) if record.task.echo else {}

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        return show(records, request.echo, request.tools, request.podium, call_id)

    def background_response(self, records: RunRecords, request: ApiRequest) -> tuple[int, dict[str, Any]]:
        return 200, self.body(records, request, str)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> ResponsesEncoder:
        return ResponsesEncoder(run, dict(request.echo), request.tools, request.podium, call_id)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        body = super().error_body(error, workflow_id)
        kind = error.error_class if isinstance(error, Failure) else type(error)
        if issubclass(kind, BudgetExceeded):
            body["error"] |= {"type": QUOTA, "code": QUOTA}
        return body

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """Return the HTTP status of an error; see `Dialect.status`.

        Whatever the headers, Codex retries 30 times after a 5xx and 6 times after most other errors. It
        retries only once after a 400, or after a 429 with the code `insufficient_quota`. So an error that
        must not be retried gets one of these two.
        """
        if isinstance(error, BudgetExceeded):
            return TOO_MANY
        if isinstance(error, BadTask | Unauthenticated):
            return errors.row(error).status
        return errors.FINAL if is_paid or not error.retryable else errors.row(error).status


def _conversation(echo: Mapping[str, Any]) -> str | None:
    conversation = echo.get("response", {}).get("conversation")
    return conversation["id"] if conversation else None


def _without_effect(body: ResponsesRequest) -> list[str]:
    """Return a note if the request sets `text.verbosity`, as agents do without effect."""
    asks = body.text.verbosity not in (None, "medium")
    return ["text.verbosity was ignored, because it has no effect on this server."] if asks else []


def _later(id: str, at: str) -> Sequence[Message]:
    """Return nothing: `complete` looks references up."""
    return ()


def _instructions(body: ResponsesRequest) -> tuple[Message, ...]:
    return (Message.of("system", body.instructions),) if body.instructions else ()


def _podium(body: ResponsesRequest) -> Podium:
    """Return the options in `podium`, completed from the fields `reasoning` and `background`."""
    changes: dict[str, Any] = {}
    if body.reasoning.is_shown and body.podium.progress == "off":
        changes["progress"] = "reasoning"
    if body.background:
        changes["background"] = True
    return body.podium.model_copy(update=changes) if changes else body.podium


def _answer_format(text_format: TextFormat) -> AnswerFormat | None:
    match text_format.type:
        case "text":
            return None
        case "json_object":
            return ANY_OBJECT
        case "json_schema":
            is_strict = text_format.strict is not False
            return read_schema(
                text_format.schema_,
                text_format.name,
                is_strict,
                "text.format",
                description=text_format.description,
            )
