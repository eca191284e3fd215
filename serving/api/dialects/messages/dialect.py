"""Dialect of Anthropic's Messages."""

from dataclasses import replace
from typing import Any

from conductor.errors import PodiumError
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from serving import errors
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.messages.conversation import conversation, notes_of_blocks
from serving.api.dialects.messages.message import message, messages_error_body
from serving.api.dialects.messages.schema import Prompt, read, read_prompt
from serving.api.dialects.messages.stream import MessagesEncoder
from serving.api.dialects.read_body import mark_last
from serving.api.event_json import plan_in_words
from serving.api.request import ApiRequest, Podium

FINAL = 403
"""HTTP status after which no client retries, Claude Code included."""


class MessagesDialect(Dialect):
    """Anthropic's Messages."""

    format_field = "output_config.format"
    joins = True

    def parse(self, body: bytes) -> ApiRequest:
        request = read(body)
        sampling = Sampling(
            max_output_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=tuple(request.stop_sequences or ()),
        )
        base = _to_request(request)
        return replace(
            base,
            sampling=sampling,
            podium=request.shown,
            stream=bool(request.stream),
            left_out=(*base.left_out, *request.extras),
            conversation_name=f"session:{request.session}" if request.session else "",
        )

    def parse_prompt(self, body: bytes) -> ApiRequest:
        """Parse the body of a token-count request. It raises the same errors as `parse`."""
        return _to_request(read_prompt(body))

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        thoughts = _thoughts(records.record) if request.podium.progress == "reasoning" else ""
        return message(records, call_id, thoughts, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> MessagesEncoder:
        return MessagesEncoder(run, request, call_id)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        return messages_error_body(error, workflow_id)

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """Return the HTTP status of a failure; see `Dialect.status`.

        A retry that joins the run costs nothing, so the usual status stays. If a retry would be billed again,
        the status is 403. A 400 would not stop Claude Code: it would retry and remove one field after
        another.
        """
        status = errors.row(error).status
        return FINAL if is_paid and not is_joined and errors.clients_retry(status) else status


def _to_request(prompt: Prompt) -> ApiRequest:
    tools, left_out = prompt.toolset
    turns = conversation(prompt)
    return ApiRequest(
        model=prompt.model,
        conversation=mark_last([message for messages in turns.values() for message in messages], prompt.mark),
        places=tuple(place for place, messages in turns.items() for _ in messages),
        sampling=Sampling(),
        effort=prompt.output_config.effort if prompt.output_config else None,
        podium=Podium(),
        stream=False,
        include_usage=True,
        tools=tools,
        answer_format=prompt.answer_format,
        left_out=left_out + notes_of_blocks(prompt),
    )


def _thoughts(record: Record) -> str:
    """Return what a stream would have shown as reasoning: the plan, and the answering worker's."""
    reasoning = record.answering.reasoning if record.answering else ""
    return plan_in_words(record.answering_plan) + reasoning
