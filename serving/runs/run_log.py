"""What is said of a run that has ended: its line in the log, and its span."""

import logging

from conductor.run.record import Record, RunRecords
from serving.redaction.failures import line_of, words_in_span
from serving.telemetry import spans
from serving.telemetry.logs import FIELDS

logger = logging.getLogger("podium")


def faults(records: RunRecords) -> list[str]:
    """Everything that went wrong in a run, also what a retry or another worker made good, for who operates
    this: once each. Where no text of it is kept, without words.
    """
    has_words = records.has_content
    found: list[str] = []
    for record in records:
        holders = (record, *record.plans, *record.steps)
        failures = [holder.failure for holder in holders if holder.failure is not None]
        attempts = [attempt for call in record.calls for attempt in call.attempts]
        attempts += [attempt for failure in failures for attempt in failure.attempts]
        lost = [*failures, *(each for each in attempts if each.outcome != "lost_race")]
        found += [line_of(each, has_words=has_words) for each in lost]
    return list(dict.fromkeys(found))


def describe(span: spans.Span, record: Record, *, content: bool) -> None:
    """Put how a run went into its span. `content`: whether the settings put texts into spans."""
    span.set_attributes({spans.ROUNDS: record.rounds, spans.STATUS: record.status})
    if record.fallback:
        span.set_attribute(spans.FALLBACK, record.fallback)
    if (cost_usd := record.cost_usd) is not None:
        span.set_attribute(spans.COST_USD, float(cost_usd))
    if record.failure:
        words = words_in_span(record.failure, record.task.permit, content=content)
        spans.mark_failed(span, record.failure.code, words)


def log(records: RunRecords) -> None:
    """One line a run: numbers and names, no prompt and no answer; and what went wrong, in full where its texts are kept.

    Args:
        records: as they may be kept: an error may quote a prompt.
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
    logger.info("workflow %s", record.status, extra={FIELDS: fields})
