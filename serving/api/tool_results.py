"""Requests with tool results: finds their run, and continues it.

Agents retry up to 30 times, and may run a tool before the answer has ended. Results that were sent before
therefore attach to their run or get its answer again, so that no model is called twice. Results are rejected
only if they differ from earlier ones, come with another API key, have an id that was not issued here, or
belong to a run that no longer waits.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import chain, repeat

from msgspec.structs import replace

from conductor.errors import BadTask, Interrupted, NotAllowed
from conductor.model.messages import Message, ToolResult
from conductor.run.record import Record, RunRecords
from conductor.run.run import Run
from conductor.run.turns import ClientReply, GivenResult
from serving.accounts.caller import Caller
from serving.accounts.rates import RateReservation
from serving.api.dialect import Dialect
from serving.api.request import ApiRequest
from serving.redaction.texts import map_texts, redact_ahead, redactor_of
from serving.sessions.deduplication import Outcome, match_results
from serving.sessions.following import follow_segment
from serving.sessions.service import Service

PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds between polls of a run that another request has just resumed."""
SETTLES_S = 10.0
"""Maximum number of seconds to wait until the run that another request has resumed is stored."""


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """Tool results that a client sends to a run.

    Args:
        results: results by the number of the tool call.
        messages: new user messages after the results.
    """

    run_id: str
    results: dict[int, ToolResult]
    messages: tuple[Message, ...]
    request: ApiRequest
    dialect: Dialect


async def find_tool_answer(request: ApiRequest, dialect: Dialect, service: Service) -> ToolAnswer | None:
    """Return the tool results at the end of the conversation, of the newest run, or None. Those before the
    last assistant message without calls are history. Raise BadTask for ids not issued here, or two results.
    """
    ids = await service.store.call_ids()
    conversation, param = request.conversation, dialect.turns_field
    answered = [n for n, m in enumerate(conversation) if m.role == "assistant" and not m.tool_calls]
    newest = conversation[answered[-1] + 1 if answered else 0 :]
    results_by_call = [
        (name, result)
        for m in newest
        for result in m.tool_results
        if (name := ids.read(result.id, param)) is not None
    ]
    if not results_by_call:
        return None
    run_id, results = results_by_call[-1][0].run_id, dict[int, ToolResult]()
    for name, result in results_by_call:
        if name.run_id == run_id and not _same(results.setdefault(name.number, result), result):
            raise BadTask(f"The tool call {result.id} has two different results. Send only one.", param=param)
    last_asked = max((n for n, m in enumerate(newest) if m.role == "assistant"), default=-1)
    messages = tuple(message for message in newest[last_asked + 1 :] if message.role == "user")
    return ToolAnswer(run_id, results, messages, request, dialect)


@asynccontextmanager
async def attach(
    service: Service, answer: ToolAnswer, caller: Caller, headers: dict[str, str], rate: RateReservation
) -> AsyncGenerator[Run | None]:
    """Continue the run with `answer`, or attach to it if it has these results. Yield None if it has ended and
    the user sends a new message. Raise NotAllowed for another key, and BadTask for different results or a run
    that no longer waits.
    """
    try:
        async with asyncio.timeout(SETTLES_S):
            settled = await _settle(service, answer, caller, headers, rate)
    except TimeoutError:
        message = "Another request is resuming the run that called these tools. Retry."
        raise Interrupted(message, retryable=True) from None
    match settled:
        case Run():
            try:
                yield settled
            finally:
                settled.answer.close()
        case _Repeated():
            id, opened = answer.run_id, follow_segment(service.store, settled.records, settled.segment)
            async with service.sessions.follow(id, caller.account, opened) as run:
                yield run
        case None:
            yield None


@dataclass(frozen=True, slots=True)
class _Repeated:
    """Run that has already received the same results. They ended its segment with the number `segment`."""

    records: RunRecords
    segment: int


async def _settle(
    service: Service, answer: ToolAnswer, caller: Caller, headers: dict[str, str], rate: RateReservation
) -> "Run | _Repeated | None":
    for pause_s in chain(PAUSES_S, repeat(PAUSES_S[-1])):
        async with service.sessions.admission.loading(answer.run_id, caller.account):
            records = await service.find_waiting(answer.run_id) or await service.store.get(answer.run_id)
        if records is None or not records.has_content or records.record.status in ("expired", "cancelled"):
            return _refuse_late(answer)
        record = records.record
        if record.account.key_id != caller.account.key_id:
            raise NotAllowed(
                "These tool results belong to a run of another API key. Send them with the API key that started the run."
            )
        match = match_results(record, answer.results)
        if match.outcome is Outcome.AWAITED:
            _check_request(record, answer)
            results = _new_results(record, answer)
            run = await service.sessions.resume(record, results, headers, caller.policies, rate)
            if run is not None:
                return run
        elif match.outcome is Outcome.REPEATED:
            client_reply = record.segments[match.segment].given
            assert client_reply is not None, "the segment ended with results"
            redact, payer = redactor_of(record.task.permit), caller.account
            texts = (*answer.results.values(), *(each.result for each in client_reply.results))
            async with redact_ahead(redact, payer, *texts, answer.messages, client_reply.said):
                messages, earlier = answer.messages, client_reply.said
                if messages and not _is_on_record(record, messages, earlier):  # a new message
                    return None
                _check_request(record, answer)
                _check_same(record, answer, client_reply)
            return _Repeated(records, match.segment)
        await asyncio.sleep(pause_s)  # another request has just resumed the run, which is not stored yet
    raise AssertionError("unreachable: the timeout of `attach` ends this loop")


def _new_results(record: Record, answer: ToolAnswer) -> ClientReply:
    """Return the results that the run is waiting for."""
    pending = {call.number for call in record.pending}
    new = tuple(GivenResult(number, result) for number, result in answer.results.items() if number in pending)
    offered = answer.request.tools
    tools = offered if offered != record.task.tools else None
    return ClientReply(new, answer.messages, tools, answer.dialect.new_echo(answer.request, record))


def _check_request(record: Record, answer: ToolAnswer) -> None:
    """Check that answer format and storage options are those of the run's start, or raise BadTask."""
    answer.dialect.check_resumes(answer.request, record)
    answer_format, original = answer.request.answer_format, record.task.answer_format
    if answer_format is None or (
        original
        and answer_format.strict == original.strict
        and _is_on_record(record, answer_format.schema, original.schema)
    ):
        return
    param = answer.dialect.format_field
    raise BadTask(
        f"{param}: the run that called these tools was started with a different answer format. Send the same format, or change "
        "it in a new message after the answer.",
        param=param,
    )


def _check_same(record: Record, answer: ToolAnswer, client_reply: ClientReply) -> None:
    """Check that repeated results equal the stored, redacted ones, or raise BadTask."""
    for each in client_reply.results:
        result = answer.results.get(each.number)
        if result is None:
            continue
        stored_result = replace(each.result, id=result.id)  # the stored id is the provider's
        if not _is_on_record(record, result, stored_result):
            raise BadTask(
                f"The tool call {result.id} already has a different result. Send the same result again, or continue from "
                "the newest answer.",
                param=answer.dialect.turns_field,
            )


def _is_on_record(record: Record, value: object, stored_value: object) -> bool:
    redact = redactor_of(record.task.permit)
    return map_texts(value, redact) == map_texts(stored_value, redact)


def _same(one: ToolResult, other: ToolResult) -> bool:
    return one.parts == other.parts and one.is_error == other.is_error


def _refuse_late(answer: ToolAnswer) -> None:
    """Reject results that no run waits for, unless the user also sends a new message."""
    if not answer.messages:
        raise BadTask(
            "The run that called these tools is no longer waiting for results, because it expired or was cancelled. Send the "
            "conversation without these results, or add a user message.",
            param=answer.dialect.turns_field,
        )
