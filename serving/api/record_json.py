"""Records and messages as JSON."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, cast

import orjson

from conductor.model.characters import whole
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import File, Message, Part, PendingCall, Text, ToolCall, ToolResult
from conductor.model.reply import CallResult
from conductor.model.usage import Usage
from conductor.plan.plan import Step
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record
from conductor.run.turns import ClientReply, Segment, StepTurn
from serving.api.authentication import CONSOLE
from serving.api.error_json import attempt_json, error_json, operator_attempt_json, operator_json

Json = dict[str, Any]
BRIEF = (
    "plan", "step", "worker", "served_by", "model", "access", "status", "cost_usd", "cost_is_bound",
    "reused_from", "started_s", "ended_s",
)  # fmt: skip
"""Fields of a step in an answer that does not have the steps in full."""
OF_A_RESULT = (
    "served_by", "model", "output", "reasoning", "usage", "cost_usd", "cached_share", "saved_usd",
    "finish_reason",
)  # fmt: skip
"""Fields of a call that are null without a result."""
PICTURE_CHARS = 64
"""Characters of a picture's URL to show: a `data:` URL holds the picture itself."""


def console_url(run_id: str) -> str:
    """Return the console's path of a run, without a host: every replica serves it."""
    return f"{CONSOLE}/#/runs/{run_id}"


def messages_json(messages: Iterable[Message]) -> list[Json]:
    """Return messages as JSON. Pictures, files and tool calls are described in words."""
    return [_message(message) for message in messages]


OF_A_TURN = ("usage", "cost_usd", "cost_is_bound", "attempts")
"""Fields of a call that a turn has. See `call_json`."""


def turns_json(step: StepRecord, *, for_operator: bool) -> Json:
    """Return the turns in which a step called tools, or {} if it called none."""
    return {"turns": [_turn(turn, for_operator=for_operator) for turn in step.turns]} if step.turns else {}


def _turn(turn: StepTurn, *, for_operator: bool) -> Json:
    call = call_json(turn.result, for_operator=for_operator)
    results = {each.number: each.result for each in turn.results}
    calls = [{**call_of_tool(each), **_result(results.get(each.number))} for each in turn.calls]
    return {
        "output": turn.result.output,
        "worker": turn.result.worker,
        **{name: call[name] for name in OF_A_TURN},
        "tool_calls": calls,
        "said": messages_json(turn.said),
        "called_s": seconds(turn.called_s),
        "answered_s": seconds(turn.answered_s),
    }


def call_of_tool(pending: PendingCall) -> Json:
    return {"number": pending.number, "name": pending.call.name, "arguments": pending.call.arguments}


def results_json(client_reply: ClientReply) -> list[Json]:
    """Return the results that a client sent to a waiting run."""
    return [{"number": each.number, **_result(each.result)} for each in client_reply.results]


def _result(result: ToolResult | None) -> Json:
    if result is None:
        return {"result": None}
    return {"result": _words(result.parts)} | ({"is_error": True} if result.is_error else {})


def _message(message: Message) -> Json:
    return {"role": message.role, "content": _words(message.parts)}


def _words(parts: Iterable[Part]) -> str:
    return "\n".join(_part(part) for part in parts)


def _part(part: Part) -> str:
    match part:
        case Text(text=text):
            return text
        case ToolCall():
            return f"[calls {part.name}: {part.arguments}]"
        case ToolResult():
            return f"[result of a tool{', an error' if part.is_error else ''}: {_words(part.parts)}]"
        case File():
            kind = "PDF" if part.text is None else "text"
            return f"[{part.name}: {kind}, {part.n_bytes} bytes]"
        case _:
            return f"[{part.url[:PICTURE_CHARS]}]"


Inner = Mapping[str, Record]
"""Records of the runs inside a run, by id."""
NONE: Inner = {}


def model_name(record: Record) -> str:
    """Return the requested model, or for a requested worker the one that answered."""
    plan = record.answering_plan
    if plan is None or plan.source != "worker":
        return record.model
    return plan.steps[-1].served_by or record.model


def usage(record: Record, *, is_of_run: bool = False) -> Json:
    """Return the answering step's tokens; the details and `total_tokens` have all calls' since the client last sent
    tool results, or with `is_of_run` all calls' of the run. `unmetered_calls` are in no sum, and make the cost a
    bound (`cost_is_bound`).
    """
    answering = record.answering_usage
    rest = record.usage - answering if is_of_run else record.orchestration
    return {
        "prompt_tokens": answering.input_tokens,
        "completion_tokens": answering.output_tokens,
        "total_tokens": answering.total_tokens + rest.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": answering.cached_input_tokens,
            **cache_writes(answering),
            "orchestration_input_tokens": rest.input_tokens,
            "orchestration_input_cached_tokens": rest.cached_input_tokens,
        },
        "completion_tokens_details": {
            "reasoning_tokens": answering.reasoning_tokens,
            "orchestration_output_tokens": rest.output_tokens,
        },
        **({"unmetered_calls": unmetered} if (unmetered := record.n_unmetered_calls) else {}),
        **({"cost_is_bound": True} if record.cost_is_bound else {}),
    }


def summary(record: Record, inner: Inner = NONE, *, trace: bool) -> Json:
    """Return the `podium` object of an answer. With `trace`, it has all steps in full."""
    return {
        "workflow_id": record.id,
        "rounds": record.rounds,
        "steps": [each if trace else {name: each[name] for name in BRIEF} for each in steps(record, inner)],
        "cost_usd": dollars(record.cost_usd),
        "cost_is_bound": record.cost_is_bound,
        **_caches(record, inner),
        "unmetered_calls": record.n_unmetered_calls,
        "wall_s": seconds(record.wall_s),
        "critical_path_s": seconds(record.critical_path_s),
        "fallback": record.fallback,
        "trace_id": record.trace_id,
        "console_url": console_url(record.id),
    } | _origin(record)


def workflow(
    record: Record, inner: Inner = NONE, *, for_operator: bool = True, has_content: bool = True
) -> Json:
    """Return a run's whole record. Its `content` is false if only lengths of texts are stored."""
    plan = record.answering_plan
    return {
        "id": record.id,
        "object": "workflow",
        "model": record.model,
        "status": record.status,
        **({"plan_only": True} if record.task.plan_only else {}),
        "content": has_content,
        "training": record.task.permit.trains,
        "account": _account(record.account),
        "created": int(record.created),
        "trace_id": record.trace_id,
        "priority": record.task.priority,
        "rounds": record.rounds,
        "fallback": record.fallback,
        "messages": messages_json(record.task.conversation),
        **({"left_out": list(record.task.left_out)} if record.task.left_out else {}),
        **({"on_step_failure": "skip"} if record.task.on_step_failure == "skip" else {}),
        "plan": [step_json(step) for step in plan.steps] if plan else [],
        "answer": record.answer,
        "finish_reason": record.finish.value if record.finish else None,
        "error": _error(record.failure, for_operator=for_operator),
        "usage": usage(record, is_of_run=True),
        "cost_usd": dollars(record.cost_usd),
        "cost_is_bound": record.cost_is_bound,
        **_caches(record, inner),
        "unmetered_calls": record.n_unmetered_calls,
        **({"lost_usd": dollars(record.lost_usd)} if record.lost_usd else {}),
        "wall_s": seconds(record.wall_s),
        "critical_path_s": seconds(record.critical_path_s),
        "plans": [_plan(each, for_operator=for_operator) for each in record.plans],
        "steps": steps(record, inner, for_operator=for_operator),
        **({"segments": [_segment(each) for each in record.segments]} if record.segments else {}),
    } | _origin(record)


def _caches(record: Record, inner: Inner) -> Json:
    """Return the conversation of a run, and what the providers' caches saved in it. `cached_share` is the share of
    the input tokens that were read from a cache.
    """
    usage = record.usage
    return {
        "conversation": record.task.sampling.options.conversation or None,
        "cached_share": _cached_share(usage),
        "saved_usd": dollars(_saved_usd(record, inner)),
    }


def _cached_share(usage: Usage | None) -> float | None:
    if usage is None or not usage.input_tokens:
        return None
    return round(usage.cached_input_tokens / usage.input_tokens, 3)


def _saved_usd(record: Record, inner: Inner) -> Decimal | None:
    """Return what caches saved in a run and its inner runs, or None if that is unknown for all calls."""
    insides = [(call, inner.get(call.inner_run or "")) for call in record.calls]
    amounts = [_saved_usd(inside, inner) if inside else call.saved_usd for call, inside in insides]
    known_amounts = [amount for amount in amounts if amount is not None]
    return sum(known_amounts, Decimal(0)) if known_amounts else None


def steps(record: Record, inner: Inner = NONE, *, for_operator: bool = False) -> list[Json]:
    """Return every step of every plan in full, in the order in which the steps were written."""
    return [
        _step(plan, step, inner, for_operator=for_operator) for plan in record.plans for step in plan.steps
    ]


def step_json(step: StepRecord | Step) -> Json:
    """Return a step as `podium.plan` accepts it, with `needs` and `on_failure` if they were set."""
    fields: Json = {"worker": step.worker, "subtask": step.subtask, "access": list(step.access)}
    options: Json = {"needs": step.needs} if step.needs else {}
    options |= {} if step.tools else {"tools": False}
    return fields | options | ({"on_failure": step.on_failure} if step.on_failure else {})


def dollars(amount: Decimal | None) -> float | None:
    return None if amount is None else float(amount)


def _tries(step: StepRecord) -> tuple[Attempt, ...]:
    """Return a step's failed calls, without the last if its error is the step's own."""
    own = step.failure if step.result is None and step.started_s is not None else None
    return (*step.cut, *step.failed, *(own.attempts if own else ()))


def _step(plan: PlanRecord, step: StepRecord, inner: Inner, *, for_operator: bool) -> Json:
    inside = inner.get(step.result.inner_run or "") if step.result else None
    return {
        "plan": plan.index,
        "round": plan.round,
        "step": step.index,
        **step_json(step),
        "status": step.status,
        "prompt": messages_json(step.prompt),
        **call_json(step.result, _tries(step), for_operator=for_operator),
        **turns_json(step, for_operator=for_operator),
        "served_by": step.served_by,
        "reused_from": step.reused_from,
        "planned_s": seconds(step.planned_s),
        "started_s": seconds(step.started_s),
        "first_token_s": seconds(step.first_token_s),
        "ended_s": seconds(step.ended_s),
        "error": _error(step.failure, for_operator=for_operator),
        "inner": workflow(inside, inner, for_operator=for_operator) if inside else None,
    }


def _plan(plan: PlanRecord, *, for_operator: bool) -> Json:
    return {
        "plan": plan.index,
        "round": plan.round,
        "source": plan.source,
        "worker": plan.worker,
        "prompt": messages_json(plan.prompt),
        **call_json(plan.result, plan.failed, for_operator=for_operator),
        "steps": [step_json(step) for step in plan.steps],
        "accepted": plan.accepted,
        "rejected": plan.reject_reason,
        "why": plan.why,
        "error": _error(plan.failure, for_operator=for_operator),
        "started_s": seconds(plan.started_s),
        "ended_s": seconds(plan.ended_s),
    }


def _segment(segment: Segment) -> Json:
    """Return a wait for the client's tools. `waited_s` is null while the run still waits."""
    waited_s = None if segment.given is None else seconds(segment.waited_s)
    return {"at_s": seconds(segment.at_s), "suspended": segment.suspended or None, "waited_s": waited_s}


def _origin(record: Record) -> Json:
    """Return the run that a cached answer comes from, or nothing."""
    return {"cached_from": record.cached_from} if record.cached_from else {}


def _account(account: Account) -> Json | None:
    """Return the ids of the key and the team of the run, or None if the server needed no key."""
    return {"key_id": account.key_id, "team_id": account.team_id or None} if account.key_id else None


def _error(failure: Failure | None, *, for_operator: bool) -> Json | None:
    if failure is None:
        return None
    return operator_json(failure) if for_operator else error_json(failure)


def call_json(
    result: CallResult | None, cut: tuple[Attempt, ...] = (), *, for_operator: bool = False
) -> Json:
    """Return the output and cost of a call, and the attempts that failed before it."""
    attempts = [
        (operator_attempt_json if for_operator else attempt_json)(each)
        for each in (*cut, *(result.attempts if result else ()))
    ]
    if result is None:
        return dict.fromkeys(OF_A_RESULT) | {"cost_is_bound": False, "attempts": attempts, "notes": []}
    return {
        "served_by": result.worker,
        "model": result.model,
        "output": result.output,
        "reasoning": result.reasoning or None,
        "usage": tokens(result.usage),
        "cost_usd": dollars(result.cost_usd),
        "cost_is_bound": result.cost_is_bound,
        "cached_share": _cached_share(result.usage),
        "saved_usd": dollars(result.saved_usd),
        "finish_reason": result.finish.value if result.finish else None,
        "attempts": attempts,
        "notes": list(result.notes),
        **({"span_id": result.span} if result.span else {}),
    } | ({"deployment": result.deployment} if for_operator and result.deployment else {})


def tokens(usage: Usage | None) -> Json | None:
    """Return the tokens of a call, or None if the upstream did not report them."""
    if usage is None:
        return None
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cached_input_tokens": usage.cached_input_tokens,
        **cache_writes(usage),
        "reasoning_tokens": usage.reasoning_tokens,
    }


def cache_writes(usage: Usage) -> Json:
    """Return the tokens written to the provider's cache, and how many of them it keeps for an hour."""
    return {
        "cache_write_tokens": usage.cache_write_tokens,
        "cache_write_1h_tokens": usage.cache_write_1h_tokens,
    }


def seconds(at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s, 6)


INT_BITS = 64


def dumps(value: Any) -> bytes:
    """Encode `value` as JSON, or as the closest text (beyond 64 bits, lone surrogates, unknown types)."""
    try:
        return orjson.dumps(value)
    except (TypeError, ValueError):  # orjson's errors are both
        return orjson.dumps(_plain(value))


def _plain(value: object) -> object:
    match value:
        case None | bool() | float():
            return value
        case int():
            return value if value.bit_length() < INT_BITS else f"a number of {value.bit_length()} bits"
        case dict():
            items = cast(dict[object, object], value).items()
            return {str(_plain(name)): _plain(each) for name, each in items}
        case list() | tuple():
            return [_plain(each) for each in cast(list[object], value)]
        case _:
            return whole(str(value))
