"""Computation of a run's record from its events. The record depends on nothing else."""

from collections.abc import Iterable

from msgspec.structs import replace

from conductor.errors import Interrupted
from conductor.model.failure import Attempt, Failure
from conductor.run.events import (
    AnswerDelta,
    CallFailed,
    CallQueued,
    Event,
    KeptEvent,
    PlanEnded,
    PlanStarted,
    ResultsGiven,
    RunCancelled,
    RunDetached,
    RunFailed,
    RunFinished,
    RunResumed,
    RunSuspended,
    StepAborted,
    StepContinued,
    StepFinished,
    StepFirstToken,
    StepPlanned,
    StepRestarted,
    StepReused,
    StepStarted,
    StepWaits,
    WorkDelta,
)
from conductor.run.plan_record import PlanRecord, StepRecord, StepStatus
from conductor.run.record import Record
from conductor.run.turns import ClientReply, Segment, StepTurn

CUT = Failure.of(Interrupted("The process that made this call ended before it received the answer."))
STREAM_TICK_S = 0.1
"""Resolution of the record's time in seconds while the answer streams, as copies would be slow."""


def after(record: Record, event: Event) -> Record:
    """Return the record after `event`. Pieces of text do not change its event number."""
    if isinstance(event, AnswerDelta):
        return _show(record, event)
    if isinstance(event, WorkDelta):
        return record
    return replace(record, seq=record.seq + 1, **_changes(record, event))


def _show(record: Record, piece: AnswerDelta) -> Record:
    """Advance the time for a piece of the answer. Its text is recorded once, with `RunFinished`."""
    if record.answer_began_s is None:
        return replace(record, answer_began_s=piece.at_s, wall_s=max(record.wall_s, piece.at_s))
    if piece.at_s < record.wall_s + STREAM_TICK_S:
        return record
    return replace(record, wall_s=piece.at_s)


Changes = dict[str, object]
"""Changed fields of a record, collected so that the record is copied once per event."""


def _changes(record: Record, event: KeptEvent) -> Changes:
    match event:
        case CallQueued():
            return {"wall_s": event.at_s}
        case PlanStarted():
            plan = PlanRecord(event.plan, event.round, event.source, event.at_s, event.worker, event.prompt)
            return {"plans": (*record.plans, plan), "wall_s": event.at_s}
        case RunFinished(at_s=at_s):
            return {"status": "finished", "answer": event.answer, "finish": event.finish, "wall_s": at_s}
        case RunSuspended():
            return _suspend(record, event)
        case ResultsGiven():
            return _give(record, event)
        case RunFailed(at_s=at_s, failure=failure):
            return {"status": "failed", "failure": failure, "wall_s": at_s}
        case RunCancelled(at_s=at_s, failure=failure):
            return {"status": "cancelled", "failure": failure, "wall_s": at_s}
        case RunDetached(at_s=at_s):
            return {"status": "detached", "plans": _cut_plans(record.plans, at_s), "wall_s": at_s}
        case RunResumed():
            return _resume(record, event)
        case _:
            plans = list(record.plans)
            plans[event.plan] = _plan_after(record, plans[event.plan], event)
            return {"plans": tuple(plans), "wall_s": event.at_s}


StepBreak = StepRestarted | StepContinued
StepEvent = (
    CallFailed
    | StepStarted
    | StepFirstToken
    | StepBreak
    | StepFinished
    | StepWaits
    | StepReused
    | StepAborted
)
PlanEvent = StepPlanned | PlanEnded | StepEvent


def _plan_after(record: Record, plan: PlanRecord, event: PlanEvent) -> PlanRecord:
    match event:
        case PlanEnded():
            return replace(
                plan,
                result=event.result,
                ended_s=event.at_s,
                accepted=event.accepted,
                rejection=event.rejection,
                failure=event.failure,
                why=event.why or plan.why,
                stopped=event.stopped,
                failed=() if event.result or event.failure else plan.failed,
            )
        case CallFailed(step=None):
            return replace(plan, failed=(*plan.failed, event.attempt))
        case StepPlanned(planned=step):
            new_step = StepRecord(
                event.step,
                step.worker,
                step.subtask,
                step.access,
                event.at_s,
                needs=step.needs,
                tools=step.tools,
                on_failure=step.on_failure,
            )
            return replace(plan, steps=(*plan.steps, new_step))
        case _:
            steps = list(plan.steps)
            assert event.step is not None
            steps[event.step] = _step_after(record, steps[event.step], event)
            return replace(plan, steps=tuple(steps))


def _step_after(record: Record, step: StepRecord, event: StepEvent) -> StepRecord:
    match event:
        case StepStarted():
            return replace(
                step,
                status="running",
                prompt=event.prompt,
                started_s=step.started_s if step.turns else event.at_s,
                result=None,
                failure=None,
                first_token_s=step.first_token_s if step.turns else None,
                served_by=None,
                ended_s=None,
                failed=(),
            )
        case CallFailed():
            return replace(step, failed=(*step.failed, event.attempt))
        case StepFirstToken():
            first_s = event.at_s if step.first_token_s is None else step.first_token_s
            return replace(step, first_token_s=first_s, served_by=event.served_by)
        case StepRestarted() | StepContinued():
            return _break_step(step, event)
        case StepFinished():
            return replace(step, status="done", result=event.result, ended_s=event.at_s, failed=())
        case StepWaits():
            turn = StepTurn(event.result, event.calls, called_s=event.at_s)
            return replace(step, status="waiting", turns=(*step.turns, turn), ended_s=event.at_s, failed=())
        case StepReused():
            earlier = record.plans[event.from_plan].steps[event.step]
            return replace(earlier, planned_s=step.planned_s, reused_from=event.from_plan)
        case StepAborted():
            if step.is_between_turns:  # the turns contain its last call
                step, event = replace(step, started_s=None), replace(event, result=None)
            return replace(
                step,
                status=event.outcome.value,
                result=event.result,
                failure=event.failure,
                ended_s=event.at_s,
                failed=() if event.result or event.failure else step.failed,
            )


def _suspend(record: Record, event: RunSuspended) -> Changes:
    numbers = tuple(call.number for call in event.calls)
    segment = Segment(
        numbers, event.text, record.usage, record.cost_usd, at_s=event.at_s, suspended=event.clock
    )
    return {"status": "waiting", "segments": (*record.segments, segment), "wall_s": event.at_s}


def _give(record: Record, event: ResultsGiven) -> Changes:
    """Assign the tool results to the steps that called the tools. The next segment of the run begins."""
    *earlier, last = record.segments
    client_reply = event.given
    plans = tuple(
        replace(plan, steps=tuple(_give_step(step, client_reply, event.at_s) for step in plan.steps))
        for plan in record.plans
    )
    tools = record.task.tools if client_reply.tools is None else client_reply.tools
    return {
        "status": "running",
        "task": replace(record.task, tools=tools),
        "segments": (*earlier, replace(last, given=client_reply, waited_s=event.waited_s)),
        "plans": plans,
        "owner": event.owner,
        "answer_began_s": None,
    }


def _give_step(step: StepRecord, client_reply: ClientReply, at_s: float) -> StepRecord:
    if step.status != "waiting":
        return step
    turn = step.turns[-1].after(client_reply, at_s)
    status: StepStatus = "planned" if turn.is_answered else "waiting"
    return replace(step, turns=(*step.turns[:-1], turn), status=status)


def _resume(record: Record, event: RunResumed) -> Changes:
    """Mark plan and calls that an earlier process left open as interrupted. The answer has no reader yet."""
    return {
        "status": "running",
        "plans": _cut_plans(record.plans, event.at_s),
        "owner": event.owner,
        "lost_usd": event.lost_usd,
        "answer_began_s": None,
        "wall_s": event.at_s,
    }


def _cut_plans(plans: tuple[PlanRecord, ...], at_s: float) -> tuple[PlanRecord, ...]:
    """Mark the open calls of `plans` as interrupted. Only the last plan, and a plan whose text is incomplete, can have
    one. The function is idempotent.
    """
    last = len(plans) - 1
    return tuple(
        _cut_plan(plan, at_s) if index == last or plan.ended_s is None else plan
        for index, plan in enumerate(plans)
    )


def _cut_plan(plan: PlanRecord, at_s: float) -> PlanRecord:
    """Mark an incomplete plan as interrupted. Otherwise reset its open steps to start again."""
    if not plan.cut and (plan.ended_s is None or plan.stopped):
        plan = replace(plan, ended_s=at_s, failure=CUT, why=CUT.message, cut=True)
    if plan.rejection is not None:
        return plan
    restarts: StepStatus = "planned" if plan.failure is None else "cancelled"
    return replace(plan, steps=tuple(_cut_step(step, restarts, at_s) for step in plan.steps))


def _break_step(step: StepRecord, event: StepBreak) -> StepRecord:
    """Reset a step whose call has ended and will be repeated."""
    if event.result is not None:
        return _cut_step(replace(step, result=event.result), "planned", event.at_s, event.failure)
    took_s = event.at_s - (event.at_s if step.started_s is None else step.started_s)
    worker = str(event.failure.get("worker") or step.worker)
    attempt = Attempt.of(worker, event.failure, took_s=took_s)
    return _without_call(replace(step, status="planned"), (*event.failure.attempts, attempt))


def _cut_step(step: StepRecord, status: StepStatus, at_s: float, why: Failure = CUT) -> StepRecord:
    if step.status not in ("planned", "running", "cancelled"):
        return step
    is_between_turns = step.is_between_turns
    step = replace(step, status=status)
    if step.started_s is None or is_between_turns:
        return step
    result = step.result
    own_result = result if result and result.inner_run is None else None  # an inner run is counted by itself
    cut_call = Attempt(
        step.served_by or step.worker,
        why.code,
        why.message,
        detail=why.detail,
        outcome="cut",
        took_s=(at_s if step.ended_s is None else step.ended_s) - step.started_s,
        usage=own_result.usage if own_result else None,
        cost_usd=own_result.cost_usd if own_result else None,
        cost_is_bound=own_result.cost_is_bound if own_result else False,
        deployment=result.deployment if result else "",
    )
    return _without_call(step, (*(result.attempts if result else step.failed), cut_call))


def _without_call(step: StepRecord, calls: tuple[Attempt, ...]) -> StepRecord:
    """Return the step without an open call, and with `calls` added to its interrupted calls."""
    return replace(
        step,
        cut=(*step.cut, *calls),
        failed=(),
        started_s=None,
        first_token_s=None,
        served_by=None,
        ended_s=None,
        result=None,
    )


def fold(record: Record, events: Iterable[Event]) -> Record:
    for event in events:
        record = after(record, event)
    return record
