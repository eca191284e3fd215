"""The decision on the next move of a run.

It depends only on the run's record and task, so that any process can continue the run.

- Plan: the request contains it, or the conductor writes it. A plan that cannot run is repaired at most once. If
  there is still no plan, one worker answers alone.
- Follow-up turns: if the conductor agrees, fails or may not replace the conversation's worker, that worker answers.
- Steps: all steps run that have not ended.
- Rounds: if more than one round is allowed, the conductor reviews the outcome, but not what the conversation's worker
  answers to tool results. If a further round fails, the previous answer is final.
"""

import dataclasses
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from conductor.errors import ContentFiltered, ContextOverflow, NoPlan, WorkerError
from conductor.model.failure import Failure
from conductor.model.reply import CallResult
from conductor.plan.plan import Plan, Step
from conductor.run.events import Source
from conductor.run.plan_record import PlanRecord
from conductor.run.record import Record
from conductor.run.task import Task

AGAIN_WITHIN_S = 10.0
"""Seconds within which an interrupted plan is written again. Later, one worker answers alone."""
ALONE: tuple[Source, ...] = ("fallback", "conversation")
"""Sources of plans in which one worker answers the user's words alone. If it fails, another worker is tried."""


@dataclass(frozen=True, slots=True)
class WritePlan:
    """Move that requests a plan from the conductor, and runs it while it is written. Rounds count from 0."""

    source: Source
    round: int


@dataclass(frozen=True, slots=True)
class RunPlan:
    plan: Plan
    source: Source
    why: str = ""


@dataclass(frozen=True, slots=True)
class ContinuePlan:
    """Move that runs the remaining steps of a complete plan."""

    index: int


@dataclass(frozen=True, slots=True)
class Finish:
    """Move that ends the run with this answer, or without an answer if the task is `plan_only`."""

    result: CallResult | None


@dataclass(frozen=True, slots=True)
class Fail:
    failure: Failure


Move = WritePlan | RunPlan | ContinuePlan | Finish | Fail


def next_move(
    record: Record,
    fallbacks: Sequence[str],
    *,
    has_conductor: bool,
    reports_filter: Collection[str] = (),
    follow_up: RunPlan | None = None,
    stays: bool = False,
) -> Move:
    """Return the next move of a run without open calls. `fallbacks` may answer alone, in their order. Content
    filter errors of `reports_filter` reach the client. `follow_up` is the plan of the conversation's worker
    alone, if this process decides about a follow-up turn. With `stays`, it runs without a plan of the conductor.
    """
    task = record.task
    while record.plans and (
        record.plans[-1].is_interrupted or (follow_up is None and _is_undecided(record))
    ):  # repeat the decision that led to it
        record = replace(record, plans=record.plans[:-1])
    if not record.plans:
        return _first_move(task, follow_up if stays else None, has_conductor=has_conductor)
    plan = record.plans[-1]
    filtered = filter_failure(plan, reports_filter)
    if filtered is not None:
        return _give_up(record, filtered)
    if follow_up is not None and _keeps_worker(record, plan):
        return dataclasses.replace(follow_up, why=plan.why)
    if plan.rejection is not None:
        return _after_rejection(record, plan, plan.rejection, fallbacks)
    if plan.failure is not None:
        return _after_conductor_failure(record, plan, fallbacks)
    if task.plan_only and not plan.accepted:
        return Finish(None)
    if plan.accepted:
        return _keep(record)
    return _after_steps(record, plan, fallbacks, has_conductor=has_conductor)


def _first_move(task: Task, follow_up: RunPlan | None, *, has_conductor: bool) -> Move:
    if task.plan is not None:
        return RunPlan(task.plan, task.plan_source)
    if follow_up is not None:
        return follow_up
    return WritePlan("conductor", 0) if has_conductor else Fail(_no_conductor())


def _is_undecided(record: Record) -> bool:
    """Return whether the process ended after the conductor's plan of a follow-up turn, and before a plan ran."""
    plan = record.plans[-1]
    is_valid = plan.ended_s is not None and plan.rejection is None and plan.failure is None
    return is_valid and not plan.steps and record.last_answer_plan is None


def _keeps_worker(record: Record, plan: PlanRecord) -> bool:
    """Return whether the conversation's worker answers a follow-up turn after the conductor's `plan`."""
    is_first = plan.round == 0 and all(each.source != "conversation" for each in record.plans)
    has_failed = plan.failure is not None and plan.failure.is_a(WorkerError)
    return is_first and (plan.accepted or plan.rejection is not None or has_failed)


def filter_failure(plan: PlanRecord, reports_filter: Collection[str]) -> Failure | None:
    """Return the failure of the plan or its last step if a content filter caused it and the client must receive it."""
    last = plan.steps[-1] if plan.steps else None
    failure = plan.failure or (last.failure if last and last.status == "failed" else None)
    if failure is not None and failure.is_a(ContentFiltered) and failure.get("worker") in reports_filter:
        return failure
    return None


def _after_rejection(record: Record, plan: PlanRecord, rejection: Failure, fallbacks: Sequence[str]) -> Move:
    if record.task.strict:
        return Fail(rejection)
    if plan.source != "repair":
        return WritePlan("repair", plan.round)
    if plan.round > 0:
        return _keep(record)  # the record has both rejections
    why = f"the plan was rejected twice, the last time as {plan.reject_reason}: {rejection.message}"
    return _fall_back(record, fallbacks, why)


def _after_conductor_failure(record: Record, plan: PlanRecord, fallbacks: Sequence[str]) -> Move:
    """Write the plan again if its text was interrupted early. Calls without a token were already retried."""
    failures = [each.failure for each in record.plans if each.round == plan.round and each.failure]
    first = failures[0]
    if record.task.strict or not first.is_a(WorkerError):
        return _give_up(record, first)
    if plan.round > 0:
        return _keep(record)
    is_quick = plan.ended_s is not None and plan.ended_s - plan.started_s < AGAIN_WITHIN_S
    if len(failures) == 1 and plan.broke_off and is_quick:
        return WritePlan(plan.source, plan.round)
    return _fall_back(record, fallbacks, f"the conductor failed: {first.description}")


def _after_steps(record: Record, plan: PlanRecord, fallbacks: Sequence[str], *, has_conductor: bool) -> Move:
    last = plan.steps[-1]
    if last.status == "done":
        if is_last_round(record.task, plan):
            return Finish(last.result)
        return WritePlan("revision", plan.round + 1)
    if last.status != "failed" or last.failure is None:
        return ContinuePlan(plan.index)
    if plan.source in ALONE and last.failure.is_a(WorkerError) and record.answer_began_s is None:
        if has_conductor and all(each.source == "conversation" for each in record.plans):
            return WritePlan("conductor", 0)
        why = f"{plan.why.removesuffix('.')}; then {last.worker} failed: {last.failure.code}"
        return _fall_back(record, fallbacks, why, last.failure)
    return _give_up(record, last.failure)


def is_last_round(task: Task, plan: PlanRecord) -> bool:
    """Return whether no round may follow `plan`.

    A plan of the request, or one that is not run, is never revised. The answer of the conversation's worker to tool
    results is not revised either, because a revision could replace the worker within the tool loop of the client.
    """
    if task.plan is not None or task.plan_only or plan.round + 1 >= task.rounds:
        return True
    return plan.source == "conversation" and (task.is_tool_loop or any(step.turns for step in plan.steps))


def _fall_back(record: Record, fallbacks: Sequence[str], why: str, failure: Failure | None = None) -> Move:
    """Let one worker answer alone. If it fails before its first token, the next move tries another worker."""
    tried = {step.worker for plan in record.plans if plan.source in ALONE for step in plan.steps}
    untried = [name for name in fallbacks if name not in tried]
    if untried:
        return RunPlan(Plan((Step(untried[0], ""),)), "fallback", why)
    overflow = next((each for each in _failures(record) if each.is_a(ContextOverflow)), None)
    return _give_up(
        record, overflow or failure or Failure.of(NoPlan(f"Planning failed: {why.removesuffix('.')}."))
    )


def _failures(record: Record) -> Iterator[Failure]:
    """Yield the failures of a run's plans and of their steps, oldest first."""
    for plan in record.plans:
        yield from (each for each in (plan.failure, *(step.failure for step in plan.steps)) if each)


def _give_up(record: Record, failure: Failure) -> Move:
    """End with the previous answer if there is one and the client has received no other text. Otherwise fail."""
    if record.last_answer_plan is None or record.answer_began_s is not None or record.task.strict:
        return Fail(failure)
    return _keep(record)


def _keep(record: Record) -> Finish:
    plan = record.last_answer_plan
    assert plan is not None, "a further round follows an answer"
    return Finish(plan.steps[-1].result)


def _no_conductor() -> Failure:
    return Failure.of(
        NoPlan(
            "No conductor is available for this run, and the request has no plan. Set `conductor` in the settings."
        )
    )
