"""Cost of runs by worker: the rows of the table `run_cost`, and their sums.

The rows of a run are written when it ends, and when it waits for tool results.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from decimal import Decimal
from typing import Any, Literal

from sqlalchemy import ColumnElement, Row, Select, case, distinct, func, select, true

from conductor.model.failure import Attempt, Failure
from conductor.model.reply import CallResult
from conductor.model.usage import Usage
from conductor.run.plan_record import StepRecord
from conductor.run.record import Record, RunRecords
from serving.accounts.caller import Caller
from serving.accounts.money import MAX_PICO, MAX_USD, to_pico
from serving.database.schema import ledger, run, run_cost
from serving.store.queries import visible

DAY_S = 86_400
DAY_US = DAY_S * 1_000_000
MOST_GROUPS = 10_000
"""Maximum number of groups in a report. A report with one more group is incomplete."""
Part = Literal["plan", "answer", "step"]
"""Purpose of a call.

- `plan`: a conductor's call.
- `answer`: a call of the step that answers, including its calls of tools, if its cost is known.
- `step`: any other call, such as one that failed.
"""
CostField = Literal["day", "team", "key", "model", "worker"]
COLUMNS: Mapping[CostField, str] = {
    "day": "day",
    "team": "team_id",
    "key": "key_id",
    "model": "model",
    "worker": "worker",
}
"""Column of each field by which costs are grouped."""
Call = CallResult | Failure | Attempt


@dataclass(frozen=True, slots=True)
class RunCostRow:
    """Row of the table `run_cost`. Its fields are the columns."""

    run_id: str
    worker: str
    part: Part
    day: int
    key_id: str | None
    team_id: str | None
    model: str
    calls: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    cache_write_1h_tokens: int = 0
    output_tokens: int = 0
    cost: int = 0
    saved: int = 0
    unknown_costs: int = 0


COST_COLUMNS = [field.name for field in fields(RunCostRow)]
COUNTS = COST_COLUMNS[COST_COLUMNS.index("calls") :]
"""Columns that are summed."""
TOKENS = [name for name in COUNTS if name.endswith("_tokens")]
AMOUNTS = ("cost", "saved")
PART = 10**9
"""Divisor of amounts. Their quotients and remainders are summed separately."""
MOST_TOKENS = 10**12
"""Maximum number of tokens of a call in a row, so that sums are not too large for the database."""


def rows_of(records: RunRecords) -> list[RunCostRow]:
    """Return the rows of a run. They contain the calls of its inner runs."""
    record = records.record
    sums = dict[tuple[str, Part], list[int]]()
    for worker, part, counts in _counted_calls(records):
        before = sums.get((worker, part), [0] * len(COUNTS))
        sums[worker, part] = [min(one + other, MAX_PICO) for one, other in zip(before, counts, strict=True)]
    account, day = record.account, int(record.created // DAY_S)
    return [
        RunCostRow(
            record.id,
            worker,
            part,
            day,
            account.key_id or None,
            account.team_id or None,
            record.model,
            *counts,
        )
        for (worker, part), counts in sums.items()
    ]


def _counted_calls(records: RunRecords) -> Iterator[tuple[str, Part, list[int]]]:
    """Yield the worker, the part and the values of `COUNTS` of each call."""
    answering_runs = set(_answering_runs(records))
    for record in records:
        for part, call in _calls(record, answers=record.id in answering_runs):
            if getattr(call, "inner_run", None) not in records.inner:
                worker = call.get("worker") if isinstance(call, Failure) else call.worker
                yield str(worker or ""), part, _counts(call)
        if not records.record.lost_usd:  # which contains their cost
            for worker, part in _unmetered(record):
                yield worker, part, [1] + [0] * (len(COUNTS) - 2) + [1]
    if lost_usd := records.record.lost_usd:
        yield "", "step", [0] * COUNTS.index("cost") + [_pico(lost_usd), 0, 0]


def _answering_runs(records: RunRecords) -> Iterator[str]:
    """Yield the ids of the run and of the inner runs that wrote its answer."""
    record: Record | None = records.record
    while record is not None:
        yield record.id
        step = _answering_step(record)
        inner_runs = [result.inner_run for result in step.results if result.inner_run] if step else []
        record = records.inner.get(inner_runs[-1]) if inner_runs else None


def _calls(record: Record, *, answers: bool) -> Iterator[tuple[Part, Call]]:
    """Yield the billed calls of a run.

    Args:
        record: record of the run.
        answers: whether the run's answer is the answer of the outermost run.
    """
    answering = _answering_step(record) if answers else None
    for plan in record.plans:
        for call in (*([plan.result] if plan.result else []), *plan.calls_without_answer):
            yield "plan", call
        for step in plan.steps:
            if step.reused_from is None:
                for result in step.results:
                    is_answer = step is answering and result.cost_usd is not None
                    yield "answer" if is_answer else "step", result
            for call in step.calls_without_answer:
                yield "step", call


def _unmetered(record: Record) -> Iterator[tuple[str, Part]]:
    """Yield the worker and the part of each call of unknown usage and cost that `_calls` does not contain.

    Such a call was closed before its first token, or its process ended.
    """
    for plan in record.plans:
        if plan.worker is not None and plan.result is None and plan.is_interrupted:
            yield plan.worker, "plan"
        for step in plan.steps:
            if step.reused_from is not None:
                continue
            for call in step.unmetered_cuts:
                if call.cost_usd is None:
                    yield call.worker, "step"
            is_billed = any(attempt.outcome == "cut" for attempt in step.failed)
            if step.is_unmetered and step.result is None and not is_billed:
                yield step.worker, "step"


def _answering_step(record: Record) -> StepRecord | None:
    """Return the step that called the model for the answer, or None for embeddings and runs without steps."""
    plan = record.answering_plan
    if plan is None or not plan.steps or record.task.operation == "embeddings":
        return None
    step = plan.steps[-1]
    while step.reused_from is not None:
        step = record.plans[step.reused_from].steps[step.index]
    return step


def _counts(call: Call) -> list[int]:
    usage, saved_usd = call.usage or Usage(), getattr(call, "saved_usd", None) or Decimal(0)
    tokens = (
        usage.input_tokens,
        usage.cached_input_tokens,
        usage.cache_write_tokens,
        usage.cache_write_1h_tokens,
        usage.output_tokens,
    )
    return [
        1,
        *(min(max(each, 0), MOST_TOKENS) for each in tokens),
        _pico(call.cost_usd or Decimal(0)),
        -_pico(-saved_usd) if saved_usd < 0 else _pico(saved_usd),
        int(call.cost_usd is None),
    ]


def _pico(usd: Decimal) -> int:
    """Return a cost in pico-dollars. A custom worker may report any amount."""
    return to_pico(min(max(usd, Decimal(0)), MAX_USD)) if usd.is_finite() else 0


@dataclass(frozen=True, slots=True)
class CostQuery:
    """Question about costs.

    Args:
        first_day, last_day: days on which the runs started, counted from 1970.
        by: fields by which the costs are grouped, at least one.
    """

    first_day: int
    last_day: int
    by: tuple[CostField, ...]


@dataclass(frozen=True, slots=True)
class CostGroup:
    """Sums of the calls with the same values of the fields in `CostQuery.by`.

    Args:
        values: values of these fields, in their order. A day is counted from 1970.
        runs: number of runs.
        sums: sums of `COUNTS`, and sums of `TOKENS` for the calls that wrote answers, whose names begin with `answer_`.
            Amounts are in pico-dollars.
    """

    values: tuple[Any, ...]
    runs: int
    sums: Mapping[str, int]

    @property
    def answer_usage(self) -> Usage:
        """Tokens of the calls that wrote answers."""
        read, cached, written, written_1h, output = (self.sums[f"answer_{name}"] for name in TOKENS)
        return Usage(read, output, cached, 0, written, written_1h)


@dataclass(frozen=True, slots=True)
class LedgerSum:
    """Sum of the ledger for the runs of a report.

    Args:
        cost: sum of all entries of these runs, in pico-dollars.
        difference: `cost` minus the sum of the recorded costs of these runs.
    """

    cost: int
    difference: int


@dataclass(frozen=True, slots=True)
class CostReport:
    """Answer to a `CostQuery`.

    Args:
        groups: sums, ordered by their values. There are at most `MOST_GROUPS` + 1.
        ledger: sum of the ledger, or None if the caller may not see it or no run is billed to a key.
    """

    groups: list[CostGroup]
    ledger: LedgerSum | None = None


def groups_query(query: CostQuery, caller: Caller) -> Select[*tuple[Any, ...]]:
    """Return the query for the groups of a report. `load_group` reads its rows."""
    columns = [run_cost.c[COLUMNS[name]] for name in query.by]
    sums = [func.sum(run_cost.c[name]).label(name) for name in COUNTS if name not in AMOUNTS]
    sums += [part for name in AMOUNTS for part in _exact_sum(run_cost.c[name], name)]
    is_answer = run_cost.c.part == "answer"
    answers = [
        func.sum(case((is_answer, run_cost.c[name]), else_=0)).label(f"answer_{name}") for name in TOKENS
    ]
    runs = func.count(distinct(run_cost.c.run_id)).label("runs")
    return (
        select(*columns, runs, *sums, *answers)
        .where(*_selected(query, caller))
        .group_by(*columns)
        .order_by(*columns)
        .limit(MOST_GROUPS + 1)
    )


def load_group(row: Row[Any], query: CostQuery) -> CostGroup:
    """Convert a row of `groups_query`. PostgreSQL returns sums as `Decimal`."""
    names = [*COUNTS, *(f"answer_{name}" for name in TOKENS)]
    sums = {name: int(getattr(row, name)) for name in names if name not in AMOUNTS}
    sums |= {name: _exact(row, name) for name in AMOUNTS}
    return CostGroup(tuple(row)[: len(query.by)], row.runs, sums)


def ledger_query(query: CostQuery, caller: Caller) -> Select[*tuple[Any, ...]]:
    """Return the query for the sum of the ledger, and for the recorded costs of the runs that it may contain.

    Runs without a key are not in the ledger. A run may be in the ledger without recorded costs.
    """
    has_costs = select(run_cost.c.run_id).where(run_cost.c.run_id == run.c.id).exists()
    runs = select(run.c.id).where(
        run.c.made_us.between(query.first_day * DAY_US, (query.last_day + 1) * DAY_US - 1),
        visible(caller),
        run.c.key_id.is_not(None),
        run.c.ended_us.is_not(None) | has_costs,
    )
    billed = select(*_exact_sum(ledger.c.amount, "billed")).where(ledger.c.run_id.in_(runs)).subquery()
    selected = (*_selected(query, caller), run_cost.c.key_id.is_not(None))
    recorded = select(*_exact_sum(run_cost.c.cost, "recorded")).where(*selected).subquery()
    return select(billed, recorded).join_from(billed, recorded, true())


def load_ledger(rows: Sequence[Row[Any]]) -> LedgerSum | None:
    """Convert the rows of `ledger_query`, or return None if no run is billed to a key."""
    billed, recorded = (_exact(rows[0], "billed"), _exact(rows[0], "recorded")) if rows else (0, 0)
    return LedgerSum(billed, billed - recorded) if billed or recorded else None


def _exact_sum(amount: ColumnElement[int], name: str) -> list[ColumnElement[int]]:
    """Return columns with the sum of an amount, which `_exact` reads. A sum of whole amounts may be too large for
    SQLite, because a custom worker may report any cost.
    """
    parts = amount // PART, amount % PART
    return [func.coalesce(func.sum(part), 0).label(f"{name}_{n}") for n, part in enumerate(parts)]


def _exact(row: Row[Any], name: str) -> int:
    return int(getattr(row, f"{name}_0")) * PART + int(getattr(row, f"{name}_1"))


def _selected(query: CostQuery, caller: Caller) -> list[ColumnElement[bool]]:
    return [run_cost.c.day.between(query.first_day, query.last_day), visible(caller, run_cost)]


def group_rows(rows: Iterable[RunCostRow], query: CostQuery) -> list[CostGroup]:
    """Return the groups of a report from rows in memory."""
    grouped = dict[tuple[Any, ...], list[RunCostRow]]()
    for row in rows:
        if query.first_day <= row.day <= query.last_day:
            grouped.setdefault(tuple(getattr(row, COLUMNS[name]) for name in query.by), []).append(row)
    ordered = sorted(grouped.items(), key=lambda each: [(value is not None, value) for value in each[0]])
    return [_sum(values, of_group) for values, of_group in ordered[: MOST_GROUPS + 1]]


def _sum(values: tuple[Any, ...], rows: Sequence[RunCostRow]) -> CostGroup:
    sums = {name: sum(getattr(row, name) for row in rows) for name in COUNTS}
    answers = [row for row in rows if row.part == "answer"]
    sums |= {f"answer_{name}": sum(getattr(row, name) for row in answers) for name in TOKENS}
    return CostGroup(values, len({row.run_id for row in rows}), sums)
