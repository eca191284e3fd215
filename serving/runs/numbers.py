"""A run without what was said in it: its numbers and names, which lists show, and which stay when the texts
are removed.
"""

from dataclasses import replace

from conductor.model.failure import Attempt, Failure
from conductor.model.worker import CallResult
from conductor.run.record import PlanRecord, Record, RunRecords, StepRecord


def without_content(records: RunRecords) -> RunRecords:
    """`records` with `… [N characters]` in place of each text of the request, of a model or of an error."""
    inner = {id: _record(record) for id, record in records.inner.items()}
    return RunRecords(_record(records.record), inner, has_content=False)


def _record(record: Record) -> Record:
    task = record.task
    return replace(
        record,
        task=replace(task, conversation=(), plan=None, sampling=replace(task.sampling, stop=())),
        plans=tuple(_plan(plan) for plan in record.plans),
        answer=_length(record.answer),
        failure=_failure(record.failure),
    )


def _plan(plan: PlanRecord) -> PlanRecord:
    return replace(
        plan,
        prompt=(),
        steps=tuple(_step(step) for step in plan.steps),
        result=_result(plan.result),
        rejection=_failure(plan.rejection),
        failure=_failure(plan.failure),
        why=_length(plan.why),
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
    )


def _failure(failure: Failure | None) -> Failure | None:
    if failure is None:
        return None
    facts = {name: fact for name, fact in failure.facts.items() if not isinstance(fact, str) or name in NAMES}
    message, attempts = _length(failure.message), _attempts(failure.attempts)
    return replace(failure, message=message, detail="", facts=facts, attempts=attempts)


NAMES = ("reason", "worker", "param")
"""Facts of a failure that are texts, and are of our own making."""


def _attempts(attempts: tuple[Attempt, ...]) -> tuple[Attempt, ...]:
    return tuple(replace(each, message=_length(each.message), detail="") for each in attempts)


def _length(text: str) -> str:
    return f"… [{len(text)} characters]" if text else ""
