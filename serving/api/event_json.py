"""Events of a run as JSON, for `progress: events` and for the event stream of a run, and in words, for
`progress: reasoning`.
"""

from typing import Any

from conductor.plan.plan import Step
from conductor.run.events import (
    AnswerDelta,
    CallFailed,
    CallQueued,
    Event,
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
from conductor.run.plan_record import PlanRecord
from serving.api.error_json import attempt_json, error_json
from serving.api.record_json import call_json, call_of_tool, dollars, results_json, seconds, step_json, tokens

Json = dict[str, Any]


def progress(event: Event) -> Json | None:
    """Return an event as `progress: events` shows it, or None if it is not shown."""
    match event:
        case PlanStarted(round=round, source=source, worker=worker):
            fields: Json = {"type": "plan_began", "round": round, "source": source, "worker": worker}
        case StepPlanned(step=index, planned=step):
            fields = {"type": "step_planned", "step": index, **step_json(step)}
        case PlanEnded():
            fields = {
                "type": "plan_ended",
                "accepted": event.accepted,
                "rejected": event.reject_reason,
                "why": event.why,
            }
        case CallQueued() | CallFailed():
            fields = _call_json(event)
        case StepStarted():
            fields = {"type": "step_began", "step": event.step}
        case StepFirstToken():
            fields = {"type": "step_spoke", "step": event.step, "served_by": event.served_by}
        case StepRestarted(failure=failure):
            fields = {"type": "step_restarted", "step": event.step, "error": error_json(failure)}
        case StepContinued(failure=failure):
            fields = {"type": "step_continued", "step": event.step, "error": error_json(failure)}
        case StepFinished() | StepWaits() | StepReused() | StepAborted():
            fields = _step_end(event) | {"step": event.step}
        case _:
            return None
    return fields | {"plan": event.plan, "at_s": seconds(event.at_s)}


def _call_json(event: CallQueued | CallFailed) -> Json:
    match event:
        case CallQueued():
            return {"type": "waits", "step": event.step, "worker": event.worker, "why": event.why}
        case CallFailed():
            return {"type": "call_failed", "step": event.step, **attempt_json(event.attempt)}


def _step_end(event: StepFinished | StepWaits | StepReused | StepAborted) -> Json:
    match event:
        case StepFinished(result=result):
            return {
                "type": "step_ended",
                "cost_usd": dollars(result.cost_usd),
                "cost_is_bound": result.cost_is_bound,
                "usage": tokens(result.usage),
                "finish_reason": result.finish.value if result.finish else None,
            }
        case StepWaits(calls=calls):
            return {"type": "step_calls_tools", "tools": [each.call.name for each in calls]}
        case StepReused():
            return {"type": "step_reused", "reused_from": event.from_plan}
        case StepAborted(outcome=outcome):
            error = error_json(event.failure) if event.failure else None
            return {"type": "step_lost", "why": outcome.value, "error": error}


def details(event: Event) -> Json | None:
    """Return an event as `/v1/workflows/{id}/events` shows it, or None. It also has outputs, if texts may be
    stored.
    """
    match event:
        case PlanEnded() | StepFinished():
            fields: Json = progress(event) or {}
            return fields | (call_json(event.result) if event.result else {})
        case StepWaits():
            return (progress(event) or {}) | _calls(event)
        case AnswerDelta() | WorkDelta():
            return _piece(event)
        case RunResumed():
            fields = {"type": "resumed"}
        case RunDetached():
            fields = {"type": "left"}
        case RunSuspended() | ResultsGiven():
            fields = _wait(event)
        case RunFinished(finish=finish):
            fields = {"type": "finished", "finish_reason": finish.value}
        case RunFailed(failure=failure):
            fields = {"type": "failed", "error": error_json(failure)}
        case RunCancelled(failure=failure):
            fields = {"type": "cancelled", **({"error": error_json(failure)} if failure else {})}
        case _:
            return progress(event)
    return fields | {"at_s": seconds(event.at_s)}


def _piece(event: AnswerDelta | WorkDelta) -> Json:
    """Return a piece of the answer or of an inner output. For the conductor's, `step` is null."""
    piece: Json = {"text": event.text, "reasoning": event.reasoning, "at_s": seconds(event.at_s)}
    if isinstance(event, AnswerDelta):
        return {"type": "answer", **piece}
    return {"type": "work", "plan": event.plan, "step": event.step, **piece}


def _calls(event: StepWaits) -> Json:
    return {"output": event.result.output, "tool_calls": [call_of_tool(each) for each in event.calls]}


def _wait(event: RunSuspended | ResultsGiven) -> Json:
    """Return the beginning or the end of a wait for the client's tools."""
    match event:
        case RunSuspended(calls=calls):
            names = [each.call.name for each in calls]
            return {"type": "waits_for_tools", "tools": names, "suspended": event.clock or None}
        case ResultsGiven(given=client_reply):
            waited_s = seconds(event.waited_s)
            return {"type": "resumed", "results": results_json(client_reply), "waited_s": waited_s}


def in_words(event: Event) -> str:
    """Return progress as a line for people, or "" if the event is not worth one."""
    match event:
        case StepPlanned(step=step, planned=planned):
            reads = (
                f" (reads {', '.join(str(read + 1) for read in planned.access)})" if planned.access else ""
            )
            needs = f" ({planned.needs})" if planned.needs else ""
            return f"Step {step + 1}, {planned.worker}{reads}: {planned.subtask or 'answer the question'}{needs}\n"
        case PlanEnded(rejection=rejection, why=why) if rejection or why:
            return f"{why}\n"
        case CallQueued(worker=worker, why=why):
            return f"{worker}: {why}\n"
        case StepFinished(step=step) | StepReused(step=step):
            return f"Step {step + 1} is done.\n"
        case StepAborted(step=step, outcome=outcome):
            return f"Step {step + 1} ended: {outcome.value.replace('_', ' ')}.\n"
        case _:
            return ""


def plan_in_words(plan: PlanRecord | None) -> str:
    return "".join(
        in_words(
            StepPlanned(
                each.planned_s, 0, each.index, Step(each.worker, each.subtask, each.access, each.needs)
            )
        )
        for each in (plan.steps if plan else ())
    )
