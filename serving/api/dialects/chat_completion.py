"""OpenAI's `chat.completion` of a run."""

from typing import Any

from conductor.run.record import RunRecords
from serving.api.dialect import CallId
from serving.api.dialects.chat_logprobs import logprobs_json
from serving.api.dialects.chat_tools import call_json
from serving.api.record_json import model_name, summary, usage
from serving.api.service_tier import tier_of

Json = dict[str, Any]


def completion(records: RunRecords, call_id: CallId, *, trace: bool) -> Json:
    """`chat.completion` of a run that has finished, or waits for results of tools."""
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
    """OpenAI's id of the run's answer."""
    return "chatcmpl-" + workflow_id.removeprefix("wf_")
