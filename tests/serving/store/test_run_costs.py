"""Cost of runs by worker: the rows of a run, and equal sums in both stores."""

import asyncio
from decimal import Decimal
from typing import Any

import pytest
from msgspec.structs import replace

from conductor.errors import WorkerUnavailable
from conductor.model.call import Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import Message, PendingCall, ToolCall
from conductor.model.operation import PromptCache, WireOptions
from conductor.model.reply import CallResult, FinishReason
from conductor.model.usage import Price, Usage
from conductor.run.events import PlanStarted
from conductor.run.fold import fold
from conductor.run.plan_record import PlanRecord, StepRecord
from conductor.run.record import Account, Record, RunRecords
from conductor.run.task import Task
from conductor.run.turns import Segment, StepTurn
from serving.accounts.caller import ANONYMOUS, DEFAULT_SCOPES, Caller
from serving.accounts.money import MAX_PICO
from serving.database.address import Address
from serving.settings.sections import LimitSettings
from serving.store.content import without_content
from serving.store.database_store import DatabaseStore
from serving.store.memory_store import MemoryStore
from serving.store.retention import DAY_US
from serving.store.run_costs import CostQuery, LedgerSum, RunCostRow, rows_of
from serving.store.run_filter import RunFilter
from tests.serving.store.stores import open_stores

pytestmark = pytest.mark.postgresql

CLAUDE = Price(Decimal(3), Decimal(15), Decimal("0.3"), Decimal("3.75"), Decimal(6))
SMALL = Price(Decimal(1), Decimal(2))
USAGE = Usage(10_000, 100, 8_000, 0, 1_000, 200)
DAY_S = 86_400


def call(worker: str, usage: Usage | None = USAGE, price: Price | None = CLAUDE, **facts: Any) -> CallResult:
    has_cost = price is not None and usage is not None
    costs = (price.of(usage), price.savings(usage)) if has_cost and price and usage else (None, None)
    return CallResult("Words.", worker, "m", usage, costs[0], FinishReason.STOP, saved_usd=costs[1], **facts)


def step(index: int, result: CallResult | None, **facts: Any) -> StepRecord:
    worker = result.worker if result else "a"
    status = "done" if result else "failed" if "failure" in facts else "cancelled"
    return StepRecord(index, worker, "", (), 0.1, status, (), result, 0.2, 0.3, worker, 0.4, **facts)


def plan(*steps: StepRecord, index: int = 0, **facts: Any) -> PlanRecord:
    whole = {"worker": "conductor", "ended_s": 0.5} | facts
    return PlanRecord(index, 0, "conductor", 0.0, steps=steps, **whole)


def run(id: str, *plans: PlanRecord, created: float = 5 * DAY_S, **facts: Any) -> Record:
    task = Task((Message.of("user", "Why?"),), model="mini")
    whole = {"status": "finished", "answer": "Words.", "account": Account("k1", "t1")} | facts
    return Record(id, task, created, plans=plans, **whole)


def values(row: RunCostRow) -> tuple[Any, ...]:
    return row.worker, row.part, row.calls, row.cost, row.saved, row.unknown_costs


def usd(price: Price, usage: Usage = USAGE) -> int:
    return int(price.of(usage) * 10**12)


def savings_of(price: Price, usage: Usage = USAGE) -> int:
    return int(price.savings(usage) * 10**12)


def test_a_row_has_the_tokens_cost_and_savings_of_a_part_of_a_run() -> None:
    record = run("wf_1", plan(step(0, call("a")), step(1, call("b")), result=call("conductor")))
    rows = rows_of(RunRecords(record))
    assert [(row.worker, row.part) for row in rows] == [("conductor", "plan"), ("a", "step"), ("b", "answer")]
    # 1,000 new tokens at $3, 8,000 cached at $0.30, 800 written at $3.75 and 200 at $6, and 100 output at $15.
    cost_usd = Decimal("0.003") + Decimal("0.0024") + Decimal("0.003") + Decimal("0.0012") + Decimal("0.0015")
    saved_usd = Decimal("0.03") + Decimal("0.0015") - cost_usd
    assert rows[2] == RunCostRow(
        "wf_1", "b", "answer", 5, "k1", "t1", "mini", 1, 10_000, 8_000, 1_000, 200, 100,
        int(cost_usd * 10**12), int(saved_usd * 10**12), 0,
    )  # fmt: skip
    assert rows_of(without_content(RunRecords(record))) == rows


def test_every_turn_of_the_answering_step_is_a_part_of_the_answer() -> None:
    turns = [StepTurn(call("b"), (PendingCall(n, ToolCall("c", "clock", "{}")),)) for n in range(2)]
    record = run("wf_1", plan(step(0, call("a")), step(1, call("b"), turns=tuple(turns))))
    assert [values(row) for row in rows_of(RunRecords(record))] == [
        ("a", "step", 1, usd(CLAUDE), savings_of(CLAUDE), 0),
        ("b", "answer", 3, 3 * usd(CLAUDE), 3 * savings_of(CLAUDE), 0),
    ]


def test_failed_calls_before_a_turn_are_counted() -> None:
    paid = Attempt("a", "WorkerUnavailable", "Gone.", usage=Usage(10, 1), cost_usd=SMALL.of(Usage(10, 1)))
    turn = StepTurn(call("b", attempts=(paid,)), (PendingCall(0, ToolCall("c", "clock", "{}")),))
    record = run("wf_1", plan(step(0, call("b"), turns=(turn,))))
    assert {row.worker: row.calls for row in rows_of(RunRecords(record))} == {"a": 1, "b": 2}
    assert record.usage == USAGE + USAGE + Usage(10, 1)


def test_failed_calls_and_calls_of_unknown_cost_are_steps() -> None:
    paid = Attempt("a", "WorkerUnavailable", "Gone.", usage=Usage(10, 1), cost_usd=SMALL.of(Usage(10, 1)))
    unpaid = Attempt("a", "WorkerBusy", "Busy.")
    error = Failure.of(WorkerUnavailable("Gone.", worker="c", cost_usd=Decimal("0.5")))
    record = run(
        "wf_1",
        plan(step(0, None, failure=error), step(1, call("b", attempts=(paid, unpaid)))),
        plan(step(0, call("b", USAGE, None)), index=1),
    )
    assert {(row.worker, row.part): (row.calls, row.cost, row.unknown_costs) for row in rows_of(RunRecords(record))} == {
        ("c", "step"): (1, 5 * 10**11, 0),
        ("a", "step"): (1, usd(SMALL, Usage(10, 1)), 0),
        ("b", "step"): (2, usd(CLAUDE), 1),
    }  # fmt: skip


def test_a_reused_step_counts_once_as_the_answer() -> None:
    early = step(0, call("a"))
    first = plan(early, worker=None, stopped=True)
    record = run("wf_1", first, plan(replace(early, reused_from=0), index=1))
    assert [values(row)[:3] for row in rows_of(RunRecords(record))] == [("a", "answer", 1)]


def test_an_inner_run_counts_instead_of_the_call_that_it_answers() -> None:
    inner = run("wf_1.1", plan(step(0, call("a")), step(1, call("b")), result=call("conductor")))
    team = CallResult("Words.", "team", "m", Usage(99, 99), Decimal(9), FinishReason.STOP, inner_run="wf_1.1")
    record = run("wf_1", plan(step(0, team), result=call("conductor")))
    rows = rows_of(RunRecords(record, {"wf_1.1": inner}))
    assert {values(row)[:3] for row in rows} == {
        ("conductor", "plan", 2),
        ("a", "step", 1),
        ("b", "answer", 1),
    }
    assert {row.run_id for row in rows} == {"wf_1"}


def test_lost_calls_have_no_worker_and_embeddings_have_no_answer() -> None:
    (lost,) = rows_of(RunRecords(run("wf_1", lost_usd=Decimal("0.25"))))
    assert values(lost) == ("", "step", 0, 25 * 10**10, 0, 0)
    record = run("wf_1", plan(step(0, call("a", Usage(10), SMALL))))
    record = replace(record, task=replace(record.task, operation="embeddings"))
    assert [row.part for row in rows_of(RunRecords(record))] == ["step"]


def test_a_call_closed_before_its_first_token_has_an_unknown_cost() -> None:
    record = run("wf_1", plan(step(0, None), result=call("conductor")), status="cancelled", answer="")
    assert [values(row) for row in rows_of(RunRecords(record))][1:] == [("a", "step", 1, 0, 0, 1)]
    stopped = run("wf_1", plan(worker="conductor", stopped=True), status="cancelled", answer="")
    assert [values(row) for row in rows_of(RunRecords(stopped))] == [("conductor", "plan", 1, 0, 0, 1)]
    lost = Attempt("b", "", "Its process ended.", outcome="cut")
    again = run("wf_1", plan(step(0, call("a"), cut=(lost,))))
    assert [values(row) for row in rows_of(RunRecords(again))][1:] == [("b", "step", 1, 0, 0, 1)]
    (_, paid) = rows_of(RunRecords(replace(again, lost_usd=Decimal("0.25"))))
    assert values(paid) == ("", "step", 0, 25 * 10**10, 0, 0)


def test_an_early_call_that_was_closed_costs_its_estimate() -> None:
    closed = Attempt("a", "", "It was closed.", outcome="cut", cost_usd=Decimal("0.25"), cost_is_bound=True)
    early = plan(step(0, None, failed=(closed,)), worker=None, stopped=True)
    assert [values(row) for row in rows_of(RunRecords(run("wf_1", early)))] == [
        ("a", "step", 1, 25 * 10**10, 0, 0)
    ]
    queued = replace(step(0, None), started_s=None)
    assert not rows_of(RunRecords(run("wf_1", plan(queued))))


@pytest.mark.parametrize("cost_usd", [Decimal("NaN"), Decimal(-1), Decimal(10**9)])
def test_any_cost_that_a_worker_reports_can_be_stored(cost_usd: Decimal) -> None:
    record = run("wf_1", plan(step(0, replace(call("a"), cost_usd=cost_usd))))
    (row,) = rows_of(RunRecords(record))
    assert 0 <= row.cost < 2**63


async def test_absurd_amounts_are_summed(store_address: Address) -> None:
    absurd = replace(call("a", Usage(2**62, 2**62)), cost_usd=Decimal(10**9), saved_usd=-Decimal(10**9))
    paid = """INSERT INTO ledger (hold_id, kind, run_id, key_id, day, month, amount, exact, above_hold, at_us)
        VALUES ('{0}', 'call', '{0}', 'k1', 5, 0, 9223372036854775807, 1, 0, 1)"""
    async with open_stores(store_address) as (replica, store):
        ids = [f"wf_{n}" for n in range(3)]
        for id in ids:
            await store.put(RunRecords(replace(run(id, plan(step(0, absurd))), owner=store.owner)))
        await store.aclose()
        async with (await replica.database()).writing() as connection:
            for id in ids:
                await connection.exec_driver_sql(paid.format(id))
        report = await store.costs(CostQuery(0, 99, ("worker",)), ANONYMOUS)
    assert [(group.sums["cost"], group.sums["saved"]) for group in report.groups] == [
        (3 * MAX_PICO, -3 * MAX_PICO)
    ]
    assert report.ledger == LedgerSum(3 * MAX_PICO, 0)


RUNS = [
    run("wf_1", plan(step(0, call("a")), step(1, call("b")), result=call("conductor", USAGE, SMALL))),
    run("wf_2", plan(step(0, call("b", USAGE, None))), created=6 * DAY_S),
    run("wf_3", plan(step(0, call("a", Usage(5, 5), SMALL))), created=6 * DAY_S, account=Account("k2", "t1")),
    run("wf_4", plan(step(0, call("a"))), created=7 * DAY_S - 1, account=Account("k3")),
    run("wf_5", plan(step(0, call("a", Usage(5, 5), SMALL))), created=7 * DAY_S, account=Account("k4", "t2")),
]
QUERIES = [
    CostQuery(5, 7, ("day", "team", "key", "model", "worker")),
    CostQuery(5, 6, ("day",)),
    CostQuery(6, 7, ("worker", "team")),
    CostQuery(8, 9, ("model",)),
]


@pytest.mark.parametrize("query", QUERIES)
async def test_both_stores_return_equal_sums_limited_to_the_callers_team(
    store_address: Address, query: CostQuery
) -> None:
    callers = [
        ANONYMOUS,
        Caller(Account("k9", "t1"), DEFAULT_SCOPES),
        Caller(Account("k3"), DEFAULT_SCOPES),
        Caller(Account("k9"), DEFAULT_SCOPES),
    ]
    memory = MemoryStore(LimitSettings)
    async with open_stores(store_address) as (_, store):
        for record in RUNS:
            await memory.put(RunRecords(record))
            await store.put(RunRecords(replace(record, owner=store.owner)))
        await store.aclose()
        for caller in callers:
            groups = (await store.costs(query, caller)).groups
            by_values = {group.values: group for group in groups}
            assert len(by_values) == len(groups)
            assert by_values == {group.values: group for group in (await memory.costs(query, caller)).groups}
        everything = await store.costs(CostQuery(0, 99, ("model",)), ANONYMOUS)
        (of_mini,) = everything.groups
        sums = of_mini.sums
        assert (of_mini.values, of_mini.runs, sums["calls"], sums["unknown_costs"]) == (("mini",), 5, 7, 1)
        assert sums["cost"] == 3 * usd(CLAUDE) + usd(SMALL) + 2 * usd(SMALL, Usage(5, 5))
        assert of_mini.answer_usage.input_tokens == 2 * 10_000 + 2 * 5, "without the answer of unknown cost"
        assert everything.ledger is not None
        assert everything.ledger.difference == -sums["cost"], "nothing is in the ledger of this test"


async def test_a_waiting_runs_costs_are_recorded_and_later_replaced(store_address: Address) -> None:
    turn = StepTurn(call("a"), (PendingCall(0, ToolCall("c", "clock", "{}")),))
    waiting = replace(step(0, None, turns=(turn,)), status="waiting", worker="a")
    record = run("wf_1", plan(step(0, call("b")), replace(waiting, index=1)))
    record = replace(record, status="waiting", answer="", segments=(Segment((0,)),))
    everything = CostQuery(0, 99, ("worker",))
    async with open_stores(store_address) as (_, store):
        record = replace(record, owner=store.owner)
        await store.suspend(RunRecords(record), 60)
        groups = (await store.costs(everything, ANONYMOUS)).groups
        assert [(group.values, group.sums["calls"]) for group in groups] == [(("a",), 1), (("b",), 1)]
        assert await store.resume("wf_1") is not None
        ended = run("wf_1", plan(step(0, call("b"))), plan(step(0, call("c")), index=1))
        await store.put(RunRecords(replace(ended, owner=store.owner)))
        await store.aclose()
        assert [group.values for group in (await store.costs(everything, ANONYMOUS)).groups] == [
            ("b",),
            ("c",),
        ]


async def test_a_lost_run_costs_what_the_ledger_states_until_its_owner_reports(
    store_address: Address,
) -> None:
    everything = CostQuery(0, 99, ("worker",))
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        for id, account in (("wf_1", Account("k1", "t1")), ("wf_2", Account())):
            record = replace(run(id, account=account, status="running", answer=""), owner=one.owner)
            record = fold(record, [PlanStarted(0.1, 0, 0, "conductor", "conductor", ())])
            one.note(record, record.seq, PlanStarted(0.1, 0, 0, "conductor", "conductor", ()))
        await until_stored(other, "wf_1", "wf_2")
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql(
                """INSERT INTO ledger (hold_id, kind, run_id, key_id, day, month, amount, exact, above_hold, at_us)
                VALUES ('h1', 'call', 'wf_1', 'k1', 5, 0, 700, 1, 0, 1)"""
            )
            await connection.exec_driver_sql(
                """INSERT INTO hold (id, run_id, call_no, key_id, day, month, worker, amount, state, owner, made_us)
                VALUES ('h2', 'wf_1', 1, 'k1', 5, 0, 'a', 50, 'open', 'gone', 1)"""
            )
            await connection.exec_driver_sql("UPDATE replica SET lease_until_us = 1")
        assert await other.sweep() == 2
        (lost,) = (await other.costs(everything, ANONYMOUS)).groups
        sums = [lost.sums[name] for name in ("calls", "cost", "unknown_costs")]
        assert (lost.values, lost.runs, sums) == (("",), 2, [1, 750, 1])
        ended = run("wf_1", plan(step(0, call("b"))))
        await one.put(RunRecords(replace(ended, owner=one.owner)))  # the replica was only frozen
        await one.aclose()
        report = await other.costs(everything, ANONYMOUS)
        costs = [(group.values, group.sums["cost"]) for group in report.groups]
        assert costs == [(("",), 0), (("b",), usd(CLAUDE))]


async def test_a_lost_run_keeps_the_rows_from_its_wait_for_tools(store_address: Address) -> None:
    turn = StepTurn(call("a"), (PendingCall(0, ToolCall("c", "clock", "{}")),))
    waiting = replace(step(0, None, turns=(turn,)), status="waiting", worker="a")
    record = run("wf_1", plan(waiting), status="waiting", answer="", segments=(Segment((0,)),))
    async with open_stores(store_address) as (dying, one), open_stores(store_address) as (_, other):
        await one.suspend(RunRecords(replace(record, owner=one.owner)), 60)
        async with (await dying.database()).writing() as connection:
            await connection.exec_driver_sql("UPDATE run SET status = 'running', kept = 0")
            await connection.exec_driver_sql(
                f"""INSERT INTO ledger (hold_id, kind, run_id, key_id, day, month, amount, exact, above_hold, at_us)
                VALUES ('h1', 'call', 'wf_1', 'k1', 5, 0, {usd(CLAUDE) + 9}, 1, 0, 1)"""
            )
            await connection.exec_driver_sql("UPDATE replica SET lease_until_us = 1")
        assert await other.sweep() == 1
        report = await other.costs(CostQuery(0, 99, ("worker",)), ANONYMOUS)
        costs = [(group.values, group.sums["cost"]) for group in report.groups]
        assert costs == [(("",), 9), (("a",), usd(CLAUDE))]
        assert report.ledger == LedgerSum(usd(CLAUDE) + 9, 0)


async def until_stored(store: DatabaseStore, *ids: str) -> None:
    async with asyncio.timeout(10):
        while not all([await store.get(id) for id in ids]):
            await asyncio.sleep(0.01)


async def test_costs_are_removed_with_their_run(store_address: Address) -> None:
    async with open_stores(store_address) as (_, store):
        for record in RUNS:
            await store.put(RunRecords(replace(record, owner=store.owner)))
        await store.aclose()
        await store.remove_old(407 * DAY_US)
        remaining = await store.costs(CostQuery(0, 99, ("day",)), ANONYMOUS)
        assert [group.values for group in remaining.groups] == [(7,)]


async def test_the_runs_of_a_conversation_can_be_listed(store_address: Address) -> None:
    cache = PromptCache(conversation="cv_1")
    sampling = Sampling(options=WireOptions(prompt_cache=cache))
    mine = run("wf_6", plan(step(0, call("a"))))
    mine = replace(mine, task=replace(mine.task, sampling=sampling))
    memory = MemoryStore(LimitSettings)
    async with open_stores(store_address) as (_, store):
        for record in (*RUNS, mine):
            await memory.put(RunRecords(record))
            await store.put(RunRecords(replace(record, owner=store.owner)))
        waiting = await store.newest(9, ANONYMOUS, None, RunFilter(conversation="cv_1"))
        await store.aclose()
        for page in (
            waiting,
            await store.newest(9, ANONYMOUS, None, RunFilter(conversation="cv_1")),
            await memory.newest(9, ANONYMOUS, None, RunFilter(conversation="cv_1")),
        ):
            assert [each.record.id for each in page.runs] == ["wf_6"]
        assert not (await store.newest(9, ANONYMOUS, None, RunFilter(conversation="cv_2"))).runs
