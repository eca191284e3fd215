"""Anthropic's `message`: the whole answer of a run, the parts of it that a stream also sends, and errors."""

import base64
import uuid
from typing import Any

import orjson

from conductor.errors import ContextOverflow, PodiumError
from conductor.model.failure import Failure
from conductor.model.messages import PendingCall, ToolCall
from conductor.model.reply import FinishReason
from conductor.run.record import Record, RunRecords
from serving import errors
from serving.api.dialect import CallId
from serving.api.error_json import error_json
from serving.api.record_json import model_name, summary

Json = dict[str, Any]
NO_CITATIONS: list[Json] = []
"""Value of the required field `citations`. The AI SDK rejects null."""
STOP_REASONS = {
    None: "end_turn",
    FinishReason.STOP: "end_turn",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.TOOL_CALLS: "tool_use",
}
"""Anthropic's stop reasons by finish reason, except for stop sequences; see `stop_of`."""
TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    409: "invalid_request_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
"""Types by HTTP status. All other errors are an `api_error`."""
TOO_LONG = "prompt is too long: "
"""Beginning of Anthropic's message that makes agents shorten their conversation."""


def message(records: RunRecords, call_id: CallId, thoughts: str, *, trace: bool) -> Json:
    """Return the answer of a run that has finished or waits for tool results, with `thoughts` before it. With
    `trace`, it has all steps in full.
    """
    record = records.record
    content: list[Json] = []
    if thoughts:
        content.append({"type": "thinking", "thinking": thoughts, "signature": signature(record)})
    if text := record.shown:
        content.append({"type": "text", "text": text, "citations": NO_CITATIONS})
    content += [
        tool_use(call_id, pending) | {"input": orjson.loads(input_json(pending.call))}
        for pending in record.pending
    ]
    return head(record) | {
        "content": content,
        **stop_of(record),
        "usage": usage(record),
        "podium": summary(record, records.inner, trace=trace),
    }


def stop_of(record: Record) -> Json:
    """Return the fields that say why a message ends. A worker's own stop sequence is not shown."""
    if record.pending:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    stop = record.answering.stop_sequence if record.answering else None
    if record.finish is FinishReason.STOP and stop in record.task.sampling.stop:
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": STOP_REASONS[record.finish], "stop_sequence": None}


def head(record: Record) -> Json:
    """Return the message at the start of a stream. It has no content and no stop reason yet."""
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
    """Return the tokens of the answering step, or of the newest step that waits for tools, with cached ones
    counted separately.
    """
    tokens = record.answering_usage
    return {
        "input_tokens": tokens.input_tokens - tokens.cached_input_tokens - tokens.cache_write_tokens,
        "output_tokens": tokens.output_tokens,
        "cache_creation_input_tokens": tokens.cache_write_tokens,
        "cache_read_input_tokens": tokens.cached_input_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": tokens.cache_write_tokens - tokens.cache_write_1h_tokens,
            "ephemeral_1h_input_tokens": tokens.cache_write_1h_tokens,
        },
        "output_tokens_details": {"thinking_tokens": tokens.reasoning_tokens},
        "server_tool_use": None,
        "service_tier": "batch" if record.task.priority == "batch" else "standard",
        "inference_geo": None,
    }


def tool_use(call_id: CallId, pending: PendingCall) -> Json:
    return {
        "type": "tool_use",
        "id": call_id(pending.number),
        "name": pending.call.name,
        "input": {},
        "caller": {"type": "direct"},
    }


def input_json(call: ToolCall) -> str:
    """Return a tool call's input as JSON text of an object, wrapped in an object if it is not one."""
    try:
        is_object = isinstance(orjson.loads(call.arguments or "{}"), dict)
    except orjson.JSONDecodeError:
        is_object = False
    if is_object:
        return call.arguments or "{}"
    return orjson.dumps({"INVALID_JSON": call.arguments}).decode()


def signature(record: Record) -> str:
    """Return the signature of a run's thinking blocks. It names the run. Clients send it back unchecked."""
    return base64.b64encode(f"podium:{record.id}".encode()).decode()


def messages_error_body(error: PodiumError | Failure, workflow_id: str | None = None) -> dict[str, Any]:
    """Return the body of a failed response, which is also the last event of a failed stream."""
    shape, row = error_json(error, workflow_id), errors.row(error)
    if row is errors.TABLE[ContextOverflow]:
        shape["message"] = TOO_LONG + shape["message"]
    return {
        "type": "error",
        "error": shape | {"type": TYPES.get(row.status, "api_error")},
        "request_id": workflow_id or f"req_{uuid.uuid4().hex}",
    }
