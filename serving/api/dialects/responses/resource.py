"""The response object: the state of a run, and the fields of the request that it repeats."""

from collections.abc import Sequence
from typing import Any

from conductor.errors import PodiumError
from conductor.model.failure import Failure
from conductor.model.messages import Tool, Toolset
from conductor.model.reply import FinishReason
from conductor.model.usage import Usage
from conductor.run.record import Record, RunRecords
from conductor.run.turns import Segment
from serving.api import record_json
from serving.api.dialects.responses.schema import ResponsesRequest
from serving.api.error_json import caller_failure
from serving.api.request import priority_of, tier_of
from serving.sessions.deduplication import has_called

Json = dict[str, Any]
INCOMPLETE = {FinishReason.LENGTH: "max_output_tokens", FinishReason.CONTENT_FILTER: "content_filter"}


def echo_of(request: ResponsesRequest, progress: str, n_earlier: int) -> Json:
    """Return the echo: the request fields that responses repeat, except tools, and the values that rebuild
    them later.
    """
    fmt = request.text.format
    text: Json = {"format": {"type": fmt.type}}
    if fmt.type == "json_schema":
        text["format"] |= {
            "name": fmt.name,
            "description": fmt.description,
            "schema": fmt.schema_ or {},
            "strict": fmt.strict is not False,
        }
    if request.text.verbosity:
        text["verbosity"] = request.text.verbosity
    return {
        "progress": progress,
        "n_earlier": n_earlier,
        "shows_encrypted": request.shows_encrypted,
        "response": {
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "parallel_tool_calls": request.parallel_tool_calls is not False,
            "previous_response_id": request.previous_response_id,
            "conversation": {"id": request.conversation} if request.conversation else None,
            "reasoning": {"effort": request.reasoning.effort, "summary": request.reasoning.summary},
            "store": request.stores,
            "temperature": 1.0 if request.temperature is None else request.temperature,
            "text": text,
            "tool_choice": request.tool_choice or "auto",
            "top_p": 1.0 if request.top_p is None else request.top_p,
            "truncation": request.truncation or "disabled",
            "metadata": request.metadata or {},
            "presence_penalty": request.presence_penalty or 0.0,
            "frequency_penalty": request.frequency_penalty or 0.0,
            "top_logprobs": request.top_logprobs or 0,
            "max_tool_calls": request.max_tool_calls,
            "background": bool(request.background),
            "service_tier": tier_of(priority_of(request.service_tier)),
            "safety_identifier": request.safety_identifier,
            "prompt_cache_key": request.prompt_cache_key,
            "prompt_cache_retention": request.prompt_cache_retention,
            "user": request.user,
        },
    }


def resource(
    id: str, records: RunRecords, echo: Json, tools: Toolset, status: str, output: list[Json], *, trace: bool
) -> Json:
    """Return a response in the state `status`, with the output items so far."""
    record = records.record
    is_over = status not in ("queued", "in_progress")
    reason = INCOMPLETE.get(record.finish) if record.finish else None
    return {
        "id": id,
        "object": "response",
        "created_at": int(record.created),
        "status": status,
        "completed_at": int(record.created + record.wall_s) if status == "completed" else None,
        "error": None,
        "incomplete_details": {"reason": reason} if status == "incomplete" else None,
        "model": record_json.model_name(record),
        "output": output,
        "tools": _tools_json(tools),
        **echo["response"],
        "usage": usage(record) if is_over else None,
        "podium": record_json.summary(record, records.inner, trace=trace)
        if is_over
        else {"workflow_id": record.id, "console_url": record_json.console_url(record.id)},
    }


def status_of(record: Record) -> str:
    """Return the status of a run in the words of OpenAI's Responses."""
    match record.status:
        case "running" | "detached":
            return "in_progress"
        case "waiting":
            return "completed"
        case "finished":
            return "incomplete" if record.finish in INCOMPLETE else "completed"
        case "cancelled":
            return "cancelled"
        case _:
            return "failed"


def error_of(failure: Failure | PodiumError, record: Record) -> Json:
    """Return the error of a failed response. If a model was called, the code is `invalid_prompt`, because
    clients retry after `server_error` but not after this code.
    """
    reported = caller_failure(failure, record)
    if reported.code == "RateLimited":
        code = "rate_limit_exceeded"
    else:
        code = "server_error" if reported.retryable and not has_called(record) else "invalid_prompt"
    return {"code": code, "message": reported.message}


def usage(record: Record) -> Json:
    """Return the tokens of the answering step, or without one those since the previous response.
    `total_tokens` and the details have the run's.
    """
    if record.status == "waiting":
        return _whole_usage(record.segments)
    tokens = record_json.usage(record)
    return {
        "input_tokens": tokens["prompt_tokens"],
        "input_tokens_details": tokens["prompt_tokens_details"],
        "output_tokens": tokens["completion_tokens"],
        "output_tokens_details": tokens["completion_tokens_details"],
        "total_tokens": tokens["total_tokens"],
    }


def _whole_usage(segments: Sequence[Segment]) -> Json:
    tokens = segments[-1].usage - (segments[-2].usage if len(segments) > 1 else Usage())
    return {
        "input_tokens": tokens.input_tokens,
        "input_tokens_details": {
            "cached_tokens": tokens.cached_input_tokens,
            **record_json.cache_writes(tokens),
        },
        "output_tokens": tokens.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tokens.reasoning_tokens},
        "total_tokens": tokens.total_tokens,
    }


def _tools_json(toolset: Toolset) -> list[Json]:
    """Return the tools of a run, grouped by namespace. Tools that were left out are missing."""
    entries: list[Json] = []
    spaces: dict[str, list[Json]] = {}
    for tool in toolset.tools:
        if tool.namespace and tool.namespace not in spaces:
            inside = spaces[tool.namespace] = list[Json]()
            entries.append({"type": "namespace", "name": tool.namespace, "description": "", "tools": inside})
        spaces.get(tool.namespace, entries).append(_tool_json(tool))
    return entries


def _tool_json(tool: Tool) -> Json:
    if tool.kind == "custom":
        shape: Json = {"type": "custom", "name": tool.name, "format": dict(tool.format or {"type": "text"})}
    else:
        parameters = None if tool.parameters is None else dict(tool.parameters)
        shape = {"type": "function", "name": tool.name, "parameters": parameters, "strict": tool.strict}
    return shape | {"description": tool.description or None}
