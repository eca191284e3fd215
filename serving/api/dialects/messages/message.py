"""Anthropic's `message`: the answer of a run, whole, and the parts of it that a stream has too."""

import base64
from typing import Any

import orjson

from conductor.model.messages import PendingCall, ToolCall
from conductor.model.reply import FinishReason
from conductor.run.record import Record, RunRecords
from serving.api.dialect import CallId
from serving.api.record_json import model_name, summary

Json = dict[str, Any]
NO_CITATIONS: list[Json] = []
"""The field is required; the AI SDK refuses a null in it."""
STOP_REASONS = {
    None: "end_turn",
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.TOOL_CALLS: "tool_use",
}
"""Anthropic's word for why a model stopped, where no stop sequence is known: see `stop_of`."""


def message(records: RunRecords, call_id: CallId, thoughts: str, *, trace: bool) -> Json:
    """The answer of a run that has finished, or waits for results of tools.

    Args:
        records: of the run.
        call_id: see `Dialect.body`.
        thoughts: what is shown of how the answer came to be.
        trace: the steps are shown in full.
    """
    record = records.record
    content: list[Json] = []
    if thoughts:
        content.append({"type": "thinking", "thinking": thoughts, "signature": signature(record)})
    if said := record.shown:
        content.append({"type": "text", "text": said, "citations": NO_CITATIONS})
    content += [tool_use(call_id, pending) | {"input": _input(pending.call)} for pending in record.pending]
    return head(record) | {
        "content": content,
        **stop_of(record),
        "usage": usage(record),
        "podium": summary(record, records.inner, trace=trace),
    }


def stop_of(record: Record) -> Json:
    """Why a message ends. A stop sequence that was not asked for is a worker's own, and none of its client's."""
    if record.pending:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    stop = record.answering.stop_sequence if record.answering else None
    if record.finish is FinishReason.STOP and stop in record.task.sampling.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": STOP_REASONS[record.finish], "stop_sequence": None}


def head(record: Record) -> Json:
    """What a message is before anything of it is said."""
    return {
        "id": "msg_" + record.id.removeprefix("wf_"),
        "type": "message",
        "role": "assistant",
        "model": model_name(record),
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "stop_details": None,
        "container": None,
        "usage": usage(record),
    }


def usage(record: Record) -> Json:
    """The answering step's tokens, or those of the newest that waits for its tools; those read from a cache or
    written to one are counted apart. All of the run's are in its record.
    """
    said = record.answering_usage
    return {
        "input_tokens": said.input_tokens - said.cached_input_tokens - said.cache_write_tokens,
        "output_tokens": said.output_tokens,
        "cache_creation_input_tokens": said.cache_write_tokens,
        "cache_read_input_tokens": said.cached_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": said.cache_write_tokens - said.cache_write_1h_tokens,
            "ephemeral_1h_input_tokens": said.cache_write_1h_tokens,
        },
        "output_tokens_details": {"thinking_tokens": said.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "batch" if record.task.priority == "batch" else "standard",
        "inference_geo": None,
    }


def tool_use(call_id: CallId, pending: PendingCall) -> Json:
    """A call of a tool, before its input."""
    return {
        "type": "tool_use",
        "id": call_id(pending.number),
        "name": pending.call.name,
        "input": {},
        "caller": {"type": "direct"},
    }


def input_json(call: ToolCall) -> str:
    """The input of a call as the text of a JSON object; what is none is put into one."""
    try:
        is_object = isinstance(orjson.loads(call.arguments or "{}"), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if is_object:
        return call.arguments or "{}"
    return orjson.dumps({"INVALID_JSON": call.arguments}).decode()


def _input(call: ToolCall) -> Json:
    return orjson.loads(input_json(call))


def signature(record: Record) -> str:
    """Of our thinking blocks. Clients send it back; it says whose they are, and nothing reads it."""
    return base64.b64encode(f"podium:{record.id}".encode()).decode()
