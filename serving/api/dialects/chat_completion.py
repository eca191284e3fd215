"""OpenAI's `chat.completion` of a finished run."""

from typing import Any

from conductor.run.record import RunRecords
from serving.api.record_json import model_name, summary, usage

Json = dict[str, Any]


def completion(records: RunRecords, *, trace: bool) -> Json:
    """`chat.completion` of a finished run."""
    record = records.record
    reasoning = record.answering.reasoning if record.answering else ""
    message: Json = {"role": "assistant", "content": record.answer, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    choice: Json = {
        "index": 0,
        "message": message,
        "logprobs": None,
        "finish_reason": record.finish.value if record.finish else "stop",
    }
    return {
        "id": chat_id(record.id),
        "object": "chat.completion",
        "created": int(record.created),
        "model": model_name(record),
        "choices": [choice],
        "usage": usage(record),
        "podium": summary(record, records.inner, trace=trace),
    }


def chat_id(workflow_id: str) -> str:
    """OpenAI's id of the run's answer."""
    return "chatcmpl-" + workflow_id.removeprefix("wf_")
