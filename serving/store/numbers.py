"""Removal of the texts from a run's records and events.

The numbers and names remain. Lists show them, and they are stored longer than the texts.
"""

from msgspec.structs import replace

from conductor.model.failure import Attempt, Failure
from conductor.model.messages import NO_TOOLS, PendingCall, ToolCall
from conductor.model.reply import CallResult
from conductor.run.events import (
    AnswerDelta,
    CallFailed,
    CallQueued,
    Event,
    PlanEnded,
    PlanStarted,
    ResultsGiven,
    RunCancelled,
    RunFailed,
    RunFinished,
    RunSuspended,
    StepAborted,
    StepContinued,
    StepFinished,
    StepPlanned,
    StepRestarted,
    StepStarted,
    StepWaits,
    WorkDelta,
)
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record, RunRecords
from conductor.run.turns import Given, Segment, StepTurn
from serving.redaction.failures import facts_without_words


def without_content(records: RunRecords) -> RunRecords:
    """Remove the texts of requests, models and errors from the records of a run.

    A text is replaced by `… [N characters]` or removed.
    """
    if not records.has_content:
        return records
    inner = {id: record_numbers(record) for id, record in records.inner.items()}
    return RunRecords(record_numbers(records.record), inner, has_content=False)


def event_numbers(event: Event) -> Event:
    """Return the event without its texts, such as prompts, answers and error messages.

    Numbers and names remain. Events with a part of a streamed answer become empty.
    """
    match event:
        case PlanStarted() | StepPlanned() | PlanEnded():
            return _plan_event(event)
        case StepStarted():
            return replace(event, prompt=())
        case StepFinished(result=result):
            return replace(event, result=_result(result) or result)
        case StepWaits() | RunSuspended() | ResultsGiven():
            return _tool_event(event)
        case StepAborted() | StepRestarted() | StepContinued():
            return _break_event(event)
        case CallQueued() | CallFailed():
            return _call_event(event)
        case RunFinished(answer=answer):
            return replace(event, answer=_length(answer))
        case RunFailed() | RunCancelled():
            return replace(event, failure=_failure(event.failure) or event.failure)
        case AnswerDelta() | WorkDelta():
            return replace(event, text="", reasoning="")
        case _:
            return event


def _call_event(event: CallQueued | CallFailed) -> Event:
    if isinstance(event, CallQueued):
        return replace(event, why=_length(event.why))
    return replace(event, attempt=_attempt(event.attempt))


def _break_event(event: StepAborted | StepRestarted | StepContinued) -> Event:
    failure, result = _failure(event.failure), _result(event.result)
    if isinstance(event, StepAborted):
        return replace(event, failure=failure, result=result)
    return replace(event, failure=failure or event.failure, result=result or event.result)


def _tool_event(event: StepWaits | RunSuspended | ResultsGiven) -> Event:
    match event:
        case StepWaits(result=result, calls=calls):
            numbers = _result(result) or result
            return replace(event, result=numbers, calls=tuple(_pending(each) for each in calls))
        case RunSuspended(calls=calls, text=text):
            return replace(event, calls=tuple(_pending(each) for each in calls), text=_length(text))
        case ResultsGiven():
            return replace(event, given=Given(()))


def _plan_event(event: PlanStarted | StepPlanned | PlanEnded) -> Event:
    match event:
        case PlanStarted():
            return replace(event, prompt=())
        case StepPlanned(planned=step):
            written = replace(step, subtask=_length(step.subtask), needs=_length(step.needs))
            return replace(event, planned=written)
        case PlanEnded():
            return replace(
                event,
                result=_result(event.result),
                rejection=_failure(event.rejection),
                failure=_failure(event.failure),
                why=_length(event.why),
            )


def record_numbers(record: Record) -> Record:
    """Return the record without its texts. A text is replaced by `… [N characters]` or removed."""
    task = record.task
    return replace(
        record,
        task=replace(
            task,
            conversation=(),
            plan=None,
            sampling=replace(task.sampling, stop=()),
            tools=NO_TOOLS,
            answer_format=None,
            echo={},
            left_out=(),  # the client chose the names of unknown fields
        ),
        plans=tuple(_plan(plan) for plan in record.plans),
        answer=_length(record.answer),
        failure=_failure(record.failure),
        segments=tuple(_segment(segment) for segment in record.segments),
    )


def _segment(segment: Segment) -> Segment:
    given = None if segment.given is None else Given(())
    return replace(segment, text=_length(segment.text), given=given)


def _turn(turn: StepTurn) -> StepTurn:
    calls = tuple(_pending(each) for each in turn.calls)
    return replace(turn, result=_result(turn.result) or turn.result, calls=calls, results=(), said=())


def _pending(each: PendingCall) -> PendingCall:
    return replace(each, call=_tool_call(each.call))


def _tool_call(call: ToolCall) -> ToolCall:
    return replace(call, arguments=_length(call.arguments))


def _plan(plan: PlanRecord) -> PlanRecord:
    return replace(
        plan,
        prompt=(),
        steps=tuple(_step(step) for step in plan.steps),
        result=_result(plan.result),
        rejection=_failure(plan.rejection),
        failure=_failure(plan.failure),
        why=_length(plan.why),
        failed=_attempts(plan.failed),
    )


def _step(step: StepRecord) -> StepRecord:
    return replace(
        step,
        subtask=_length(step.subtask),
        needs=_length(step.needs),
        prompt=(),
        result=_result(step.result),
        failure=_failure(step.failure),
        cut=_attempts(step.cut),
        failed=_attempts(step.failed),
        turns=tuple(_turn(turn) for turn in step.turns),
    )


def _result(result: CallResult | None) -> CallResult | None:
    if result is None:
        return None
    return replace(
        result,
        output=_length(result.output),
        reasoning=_length(result.reasoning),
        attempts=_attempts(result.attempts),
        notes=(),
        tool_calls=tuple(_tool_call(call) for call in result.tool_calls),
        native=None,
        logprobs=(),
    )


def _failure(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    facts = facts_without_words(failure)
    message, attempts = _length(failure.message), _attempts(failure.attempts)
    return replace(failure, message=message, detail="", facts=facts, attempts=attempts)


def _attempts(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    return tuple(map(_attempt, attempts))


def _attempt(attempt: Attempt) -> Attempt:
    return replace(attempt, message=_length(attempt.message), detail="")


def _length(text: str) -> str:
    return f"… [{len(text)} characters]" if text else ""
