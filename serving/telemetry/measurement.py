"""Measurements of a run, derived from its record, and the interface to which they are sent.

This module does not depend on Ray or Prometheus. `serving/deployments/ray_meter.py` implements the interface
with them.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

from conductor.errors import QuestionRejected, WorkerError
from conductor.model.failure import Attempt, Failure
from conductor.model.reply import CallResult
from conductor.model.usage import Usage
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Record, RunRecords
from serving.health import Circuit, WorkerHealth
from serving.telemetry import metrics
from serving.telemetry.metrics import Instrument

logger = logging.getLogger("podium")


class Measurement(NamedTuple):
    """Measured value of an instrument (a metric), with a value for each of the instrument's labels."""

    instrument: Instrument
    value: float
    labels: tuple[str, ...] = ()


class MeasurementSink(Protocol):
    """Receiver of measurements. It adds to a counter, observes a value in a histogram, or sets a gauge."""

    def take(self, measurement: Measurement) -> None:
        """Record a measurement without blocking."""
        ...


def report(meter: MeasurementSink | None, measurements: Iterable[Measurement]) -> None:
    """Send `measurements` to `meter`, if there is one.

    An error is logged but not raised, because metrics must not break requests.
    """
    if meter is None:
        return
    try:
        for measurement in measurements:
            meter.take(measurement)
    except Exception:  # the request has been answered, whatever a metrics library raises
        logger.exception("Cannot record the metrics of a run")


def of_run(records: RunRecords, providers: Mapping[str, str]) -> Iterator[Measurement]:
    """Yield the measurements of a finished run. `providers` have names of the OpenTelemetry conventions."""
    yield from _of_whole(records.record)
    for run in records:
        for plan in run.plans:
            yield Measurement(metrics.PLANS, 1, (plan.source, _fate(plan), plan.reject_reason or ""))
            yield from (
                Measurement(metrics.STEPS, 1, (step.served_by or step.worker, step.status))
                for step in plan.steps
                if step.reused_from is None
            )
        for call in _calls(run):
            yield from _of_call(call, providers)


def _of_whole(record: Record) -> Iterator[Measurement]:
    model, plan, cost_usd = (record.model,), record.answering_plan, record.cost_usd
    status = "planned" if _only_planned(record) else record.status
    yield Measurement(metrics.WORKFLOW_DURATION, record.wall_s, (record.model, status, _code(record.failure)))
    if record.answer_began_s is not None:
        yield Measurement(metrics.FIRST_ANSWER, record.answer_began_s, model)
    if cost_usd is None:
        yield Measurement(metrics.COST_UNKNOWN, 1, model)
    else:
        yield Measurement(metrics.COST, float(cost_usd), model)
        yield Measurement(metrics.TEAM_COST, float(cost_usd), (record.account.team_id or "none",))
        if limit_usd := record.task.budget.max_cost_usd:
            yield Measurement(metrics.BUDGET_USED, float(cost_usd / limit_usd), model)
    if plan is not None:
        yield Measurement(metrics.PLAN_STEPS, len(plan.steps), model)
        yield Measurement(metrics.PLAN_DEPTH, _depth(plan), model)
        if status == "finished" and record.critical_path_s > 0:
            yield Measurement(metrics.OVER_CRITICAL_PATH, record.wall_s / record.critical_path_s, model)


QUANTILES = (0.5, 0.95)
CIRCUITS: Mapping[Circuit, float] = {"closed": 0.0, "half_open": 0.5, "open": 1.0}


def of_health(worker: str, health: WorkerHealth) -> Iterator[Measurement]:
    """Yield measurements of a worker's current health. Times are 0 until a first token has been measured."""
    yield Measurement(metrics.WORKER_FAILURES, health.failures_in_a_row, (worker,))
    yield Measurement(metrics.WORKER_CIRCUIT, CIRCUITS[health.circuit], (worker,))
    yield Measurement(metrics.WORKER_FAILURE_SHARE, health.failure_share, (worker,))
    for quantile in QUANTILES:
        first_token_s = health.first_token_s(quantile) or 0.0
        yield Measurement(metrics.WORKER_FIRST_TOKEN, first_token_s, (worker, str(quantile)))


@dataclass(frozen=True, slots=True)
class _Call:
    operation: str
    worker: str
    result: CallResult | None
    failure: Failure | None
    took_s: float | None
    first_chunk_s: float | None = None


def _of_call(call: _Call, providers: Mapping[str, str]) -> Iterator[Measurement]:
    result, failure = call.result, call.failure
    worker = result.worker if result else call.worker
    labels = (call.operation, providers.get(worker, "podium"), worker)
    if call.took_s is not None:
        yield Measurement(metrics.CALL_DURATION, call.took_s, (*labels, _code(failure)))
    if call.first_chunk_s is not None:
        yield Measurement(metrics.CALL_FIRST_CHUNK, call.first_chunk_s, labels)
    # The calls of an inner run are counted separately.
    if result and result.usage and result.inner_run is None:
        yield from _of_usage(result.usage, labels)
    yield from _of_failures(call)


def _of_usage(usage: Usage, labels: tuple[str, str, str]) -> Iterator[Measurement]:
    operation, _, worker = labels
    for kind, n_tokens in (("input", usage.input_tokens), ("output", usage.output_tokens)):
        yield Measurement(metrics.CALL_TOKENS, n_tokens, (*labels, kind))
        yield Measurement(metrics.WORKER_TOKENS, n_tokens, (operation, worker, kind))
    for kind, n_tokens in (
        ("cached_input", usage.cached_input_tokens),
        ("reasoning", usage.reasoning_tokens),
    ):
        yield Measurement(metrics.WORKER_TOKENS, n_tokens, (operation, worker, kind))


def _of_failures(call: _Call) -> Iterator[Measurement]:
    """Yield a measurement for each failed attempt of a call: retried, failed over or given up."""
    result, failure = call.result, call.failure
    last_failure = failure if failure is not None and failure.is_a(WorkerError) else None
    attempts = result.attempts if result else last_failure.attempts if last_failure else ()
    failed_worker = str(last_failure.get("worker") or "") if last_failure else ""
    last = result.worker if result else failed_worker or call.worker
    yield from _of_attempts(attempts, last)
    if last_failure and not last_failure.is_a(QuestionRejected):
        yield Measurement(metrics.WORKER_ERRORS, 1, (last, _code(last_failure), "gave_up"))


def _of_attempts(attempts: Iterable[Attempt], last: str) -> Iterator[Measurement]:
    """Yield a measurement for each failed attempt before the last, and each hedge. An attempt was retried if
    the next one has the same worker, or else failed over. A program that rejects a question has not failed.
    """
    attempts = tuple(attempts)
    for each in attempts:
        if each.outcome == "lost_race":
            yield Measurement(metrics.HEDGES, 1, (each.worker, "lost" if each.hedge else "won"))
    failed = [
        each
        for each in attempts
        if each.outcome not in ("left_alone", "lost_race") and each.error != QuestionRejected.__name__
    ]
    for attempt, after in pairwise([*((each.worker, each.error) for each in failed), (last, "")]):
        then = "retried" if attempt[0] == after[0] else "failed_over"
        yield Measurement(metrics.WORKER_ERRORS, 1, (*attempt, then))


def _calls(run: Record) -> Iterator[_Call]:
    for plan in run.plans:
        if plan.worker is not None:
            yield _Call(
                "plan", plan.worker, plan.result, plan.failure, _between(plan.started_s, plan.ended_s)
            )
        # A reused result was already counted for the step that made the call.
        yield from (
            _step(step) for step in plan.steps if step.started_s is not None and step.reused_from is None
        )


def _step(step: StepRecord) -> _Call:
    # The duration of an interrupted step says nothing about the worker.
    ended_s = step.ended_s if step.status in ("done", "failed") else None
    return _Call(
        "chat",
        step.worker,
        step.result,
        step.failure,
        _between(step.started_s, ended_s),
        _between(step.started_s, step.first_token_s),
    )


def _fate(plan: PlanRecord) -> str:
    if plan.rejection:
        return "rejected"
    if plan.source == "conversation" and plan.stopped:
        return "superseded"
    return "failed" if plan.failure else "accepted" if plan.accepted else "run"


def _only_planned(record: Record) -> bool:
    steps = [step for plan in record.plans for step in plan.steps]
    return record.status == "finished" and all(step.status == "planned" for step in steps)


def _depth(plan: PlanRecord) -> int:
    depths: list[int] = []
    for step in plan.steps:
        depths.append(1 + max((depths[read] for read in step.access), default=0))
    return max(depths)


def _between(began_s: float | None, ended_s: float | None) -> float | None:
    return None if began_s is None or ended_s is None else ended_s - began_s


def _code(failure: Failure | None) -> str:
    return failure.code if failure else ""
