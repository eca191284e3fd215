"""The log line and the span attributes of a run that has ended."""

import logging

from conductor.model.failure import Attempt, Failure
from conductor.run.plan_record import StepRecord
from conductor.run.record import Record, RunRecords
from serving.redaction.failures import line_of, words_in_span
from serving.telemetry import spans
from serving.telemetry.logs import FIELDS

logger = logging.getLogger("podium")


def faults(records: RunRecords) -> list[str]:
    """Return all failures of a run for operators, including those that a retry or another worker recovered
    from.

    Each appears once, the first cause first. The text is omitted if no text of the run may be stored.
    """
    has_words = records.has_content
    found: list[str] = []
    for record in records:
        lost: list[Failure | Attempt] = []
        for plan in record.plans:
            for holder in (plan, *plan.steps):
                results = (
                    holder.results
                    if isinstance(holder, StepRecord)
                    else [holder.result]
                    if holder.result
                    else []
                )
                lost += [attempt for result in results for attempt in result.attempts]
                lost += holder.failure.causes if holder.failure is not None else ()
        lost += record.failure.causes if record.failure is not None else ()
        lost = [each for each in lost if isinstance(each, Failure) or each.outcome != "lost_race"]
        found += [line_of(each, has_words=has_words) for each in lost]
    return list(dict.fromkeys(found))


def describe(span: spans.Span, record: Record, *, content: bool) -> None:
    """Set the outcome of a run in its span. `content`: whether the settings allow texts in spans."""
    if not span.is_recording():
        return
    span.set_attributes({spans.ROUNDS: record.rounds, spans.STATUS: record.status})
    if record.fallback:
        span.set_attribute(spans.FALLBACK, record.fallback)
    if (cost_usd := record.cost_usd) is not None:
        span.set_attribute(spans.COST_USD, float(cost_usd))
    if record.failure:
        words = words_in_span(record.failure, record.task.permit, content=content)
        spans.mark_failed(span, record.failure.code, words)


def log(records: RunRecords) -> None:
    """Log one line for a run with numbers and names, but no prompt and no answer. The line of a failed run is
    a warning.

    Args:
        records: the storable part, because an error may quote a prompt.
    """
    record = records.record
    used, cost_usd, began_s = record.usage, record.cost_usd, record.answer_began_s
    calls = record.calls
    fields = {
        "id": record.id,
        "model": record.model,
        "status": record.status,
        "plans": len(record.plans),
        "steps": len(record.steps),
        "workers": sorted({call.worker for call in calls}),
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cached_input_tokens": used.cached_input_tokens,
        "cost_usd": None if cost_usd is None else float(cost_usd),
        "cost_is_bound": record.cost_is_bound,
        "wall_s": round(record.wall_s, 4),
        "critical_path_s": round(record.critical_path_s, 4),
        "answer_began_s": None if began_s is None else round(began_s, 4),
        "fallback": record.fallback is not None,
        "rejected": [plan.reject_reason for plan in record.plans if plan.reject_reason],
        "error_type": record.failure.code if record.failure else None,
        "errors": faults(records),
        "trace_id": record.trace_id,
        "training": record.task.permit.trains,
        "cached_from": record.cached_from or None,
        "deployments": sorted({f"{call.worker}@{call.deployment}" for call in calls if call.deployment}),
        "key_id": record.account.key_id or None,
        "team_id": record.account.team_id or None,
    }
    level = logging.WARNING if record.status in ("failed", "lost") else logging.INFO
    logger.log(level, "workflow %s", record.status, extra={FIELDS: fields})
