"""Anthropic's Messages, put together."""

from dataclasses import replace
from typing import Any

from conductor.errors import PodiumError
from conductor.model.call import Sampling
from conductor.model.failure import Failure
from conductor.plan.plan import Step
from conductor.run.events import StepPlanned
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from serving import errors
from serving.api.dialect import CallId, Dialect
from serving.api.dialects.chat.encoding import in_words
from serving.api.dialects.messages.conversation import conversation, notes_of_blocks
from serving.api.dialects.messages.errors import messages_error_body
from serving.api.dialects.messages.message import message
from serving.api.dialects.messages.schema import Prompt, read, read_prompt
from serving.api.dialects.messages.stream import MessagesEncoder
from serving.api.dialects.read_body import mark_last
from serving.api.request import ApiRequest, Podium

FINAL = 403
"""The status after which neither Claude Code nor anybody else asks again."""


class MessagesDialect(Dialect):
    """See `Dialect`."""

    format_field = "output_config.format"
    joins = True

    def parse(self, body: bytes) -> ApiRequest:
        """See `Dialect.parse`."""
        request = read(body)
        sampling = Sampling(
            max_output_tokens=request.max_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            stop=tuple(request.stop_sequences or ()),
        )
        asked = _to_request(request)
        return replace(
            asked,
            sampling=sampling,
            podium=request.shown,
            stream=bool(request.stream),
            left_out=(*asked.left_out, *request.extras),
        )

    def parse_prompt(self, body: bytes) -> ApiRequest:
        """A request whose tokens are to be counted; raises as `parse` does."""
        return _to_request(read_prompt(body))

    def body(self, records: RunRecords, request: ApiRequest, call_id: CallId) -> dict[str, Any]:
        """See `Dialect.body`."""
        thoughts = _thoughts(records.record) if request.podium.progress == "reasoning" else ""
        return message(records, call_id, thoughts, trace=request.podium.trace)

    def encoder(self, run: Run, request: ApiRequest, call_id: CallId) -> MessagesEncoder:
        """See `Dialect.encoder`."""
        return MessagesEncoder(run, request, call_id)

    def error_body(self, error: PodiumError | Failure, workflow_id: str | None) -> dict[str, Any]:
        """See `Dialect.error_body`."""
        return messages_error_body(error, workflow_id)

    def status(self, error: PodiumError, *, is_paid: bool, is_joined: bool) -> int:
        """See `Dialect.status`. Where a second asking joins the run nothing is paid twice whatever the status; after a
        400 Claude Code would leave out one field after another.
        """
        status = errors.row(error).status
        return FINAL if is_paid and not is_joined and errors.is_asked_again(status) else status


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
    """What a stream would have shown: the plan, and what the answering worker thought."""
    plan = record.answering_plan
    planned = [
        in_words(
            StepPlanned(
                step.planned_s, 0, step.index, Step(step.worker, step.subtask, step.access, step.needs)
            )
        )
        for step in (plan.steps if plan else ())
    ]
    return "".join(planned) + (record.answering.reasoning if record.answering else "")
