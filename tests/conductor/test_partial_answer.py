"""Runs that stop after any event and are continued from their records by another process."""

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from decimal import Decimal
from pathlib import Path

import pytest
from msgspec.structs import replace

from conductor.errors import BadTask, BudgetExceeded, WorkerRefused
from conductor.model.call import Sampling
from conductor.model.usage import Usage
from conductor.plan.plan import Plan
from conductor.run.call_bound import input_bound
from conductor.run.codec import dump, load
from conductor.run.ledger import Budget
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import Record, RunRecords
from tests.conductor.continuing import CASES, Ended, faults, run_whole
from tests.conductor.team import DEAR, NEVER, Player, a_plan, ask_for, line, team
from tests.conftest import ROOT
from tests.states import until


def continue_in_another_process(wholes: list[Ended], folder: Path) -> list[list[Ended]]:
    rows = [
        json.dumps({"case": case, "records": snapshot})
        for case, whole in enumerate(wholes)
        for snapshot in whole.snapshots
    ]
    (folder / "cuts.jsonl").write_text("\n".join(rows))
    process = subprocess.run(
        [sys.executable, "-m", "tests.conductor.continuing", str(folder / "cuts.jsonl")],
        capture_output=True, text=True, cwd=ROOT, timeout=110,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    lines = iter(process.stdout.splitlines())
    return [[Ended(**json.loads(next(lines))) for _ in whole.snapshots] for whole in wholes]


def test_a_run_interrupted_after_any_event_ends_the_same_without_repeated_calls(
    tmp_path: Path,
) -> None:
    wholes = [asyncio.run(run_whole(case)) for case in range(CASES)]
    continued = continue_in_another_process(wholes, tmp_path)
    wrong: list[str] = []
    cuts = unread = 0
    for case, (whole, ends) in enumerate(zip(wholes, continued, strict=True)):
        for cut, (snapshot, end) in enumerate(zip(whole.snapshots, ends, strict=True)):
            cuts += 1
            records = load(RunRecords, snapshot)
            wrong += [f"case {case} cut {cut}: {fault}" for fault in faults(whole, records, end)]
            unread += any(has_unread_result(record) for record in records)
    statuses = Counter(whole.status for whole in wholes)
    assert cuts > 15 * CASES, "the cases are not empty"
    assert unread > CASES / 2, "nor is every step read"
    assert statuses["finished"] > CASES / 2
    assert not wrong, "\n".join([f"{len(wrong)} of {cuts}", *wrong[:10]])


def has_unread_result(record: Record) -> bool:
    """Return whether the last plan is unfinished and has a finished step whose result its last step does not reach."""
    plan = record.plans[-1] if record.plans else None
    if plan is None or plan.ended_s is None or not plan.steps or plan.is_answered:
        return False
    reached = Plan(tuple(step.step for step in plan.steps)).reachable
    return any(step.status == "done" and step.index not in reached for step in plan.steps)


async def stop_while(team_of: object, task: object, state: object) -> RunRecords:
    """Return the records of a run as a process that is killed in `state` leaves them."""
    records: dict[str, Record] = {}

    def keep(record: Record, _: int, __: object) -> None:
        records[record.id] = record

    async with open_run(team_of, task, "wf_1", journal=keep) as run:  # type: ignore[arg-type]
        await until(state)  # type: ignore[arg-type]
        snapshot = dump(run.records)
    return load(RunRecords, snapshot)


async def test_an_interrupted_call_is_repeated_and_recorded_as_cut() -> None:
    plan = a_plan(("a", ()), ("b", (0,)))
    stuck = Player("b", ["so far", NEVER])
    records = await stop_while(
        team(Player("a", "fine"), stuck), ask_for(plan=plan), lambda: stuck.n_pieces == 1
    )
    idle, fresh = Player("a", "fine"), Player("b", "the answer")
    async with resume_run(team(idle, fresh), records, owner="next") as run:
        events = [event async for event in run.events()]
    assert (run.record.answer, run.record.owner) == ("the answer", "next")
    assert (len(idle.calls), len(fresh.calls)) == (0, 1)
    assert [(attempt.worker, attempt.outcome) for attempt in run.record.plans[0].steps[1].cut] == [
        ("b", "cut")
    ]
    assert run.record.n_unmetered_calls == 1
    assert events[0].owner == "next"  # type: ignore[union-attr]


async def test_steps_of_an_interrupted_plan_are_reused_by_the_new_plan() -> None:
    first = Player("a", "done once")
    boss = Player("boss", [line(0), NEVER])
    pool = team(first, conductor=boss)
    records = await stop_while(pool, ask_for(), lambda: first.n_pieces == 1 and first.open_calls == 0)
    again = Player("a", "answer")
    text = line(0) + line(0, "sum up", [0])
    async with resume_run(team(again, conductor=Player("boss", text)), records) as run:
        [_ async for _ in run.events()]
    plans = run.record.plans
    assert [plan.is_interrupted for plan in plans] == [True, False]
    assert [step.reused_from for step in plans[1].steps] == [0, None]
    assert "done once" in again.calls[0].messages[-1].text
    assert (run.record.answer, len(again.calls)) == ("answer", 1)


async def test_earlier_costs_and_the_open_calls_bound_count_against_the_budget() -> None:
    plan = a_plan(("a", ()), ("b", (0,)))
    task = ask_for(plan=plan, budget=Budget(max_cost_usd=Decimal("0.01")))
    stuck = Player("b", ["so far", NEVER], price=DEAR)
    records = await stop_while(team(Player("a", "fine"), stuck), task, lambda: stuck.n_pieces == 1)
    async with resume_run(team(Player("a", "fine"), Player("b", "more", price=DEAR)), records) as run:
        [_ async for _ in run.events()]
    assert run.record.failure is not None
    assert run.record.failure.is_a(BudgetExceeded), "the open call may have cost all of it"


async def test_known_costs_of_lost_calls_count_once_in_cost_and_budget() -> None:
    plan, known_usd, paid_usd = a_plan(("a", ()), ("b", (0,))), DEAR.of(Usage(10, 10)), Decimal("0.01")
    task = ask_for(plan=plan, sampling=Sampling(max_output_tokens=100))
    first, stuck = (
        Player("a", ["fine", Usage(10, 10)], price=DEAR),
        Player("b", ["so far", NEVER], price=DEAR),
    )
    records = await stop_while(team(first, stuck), task, lambda: stuck.n_pieces == 1)
    worst_usd = DEAR.most(Usage(input_bound(stuck.calls[0]), 100))
    assert paid_usd < worst_usd
    twice = Budget(max_cost_usd=known_usd + 2 * worst_usd)
    records = replace(records, record=replace(records.record, task=replace(task, budget=twice)))
    for _ in range(2):  # The second time, the payment is already on record.
        second = Player("b", ["more", Usage(5, 5)], price=DEAR)
        async with resume_run(team(Player("a"), second), records, paid_usd=known_usd + paid_usd) as run:
            records = load(RunRecords, dump(run.records))
            [_ async for _ in run.events()]
        assert second.calls[0].sampling.max_output_tokens == 100
        assert run.record.cost_usd == known_usd + paid_usd + DEAR.of(Usage(5, 5))
    assert records.record.lost_usd == paid_usd


async def test_a_resumed_run_that_had_ended_replays_its_answer_without_calls() -> None:
    first = team(Player("a", ["the ", "answer"]))
    async with open_run(first, ask_for(plan=a_plan(("a", ())))) as run:
        [_ async for _ in run.events()]
    again = Player("a", "other")
    async with resume_run(team(again), load(RunRecords, dump(run.records))) as replay:
        events = [event async for event in replay.events()]
    assert [type(event).__name__ for event in events] == ["AnswerDelta", "RunFinished"]
    assert (events[0].text, again.calls) == ("the answer", [])  # type: ignore[union-attr]


async def test_a_resumed_run_without_its_conductor_ends_with_its_last_answer() -> None:
    boss = Player("boss", line(0), [NEVER])
    records = await stop_while(
        team(Player("a", "first"), conductor=boss), ask_for(rounds=2), lambda: len(boss.calls) == 2
    )
    async with asyncio.timeout(5), resume_run(team(Player("a")), records) as run:
        [_ async for _ in run.events()]
    assert (run.record.status, run.record.answer) == ("finished", "first")


async def test_a_run_whose_worker_was_removed_is_rejected_before_any_call() -> None:
    stuck = Player("b", [NEVER])
    task = ask_for()
    pool = team(Player("a"), stuck, conductor=Player("boss", line(1)))
    records = await stop_while(pool, task, lambda: stuck.open_calls == 1)
    other = Player("a")
    with pytest.raises(BadTask, match="'b'"):
        async with resume_run(team(other, conductor=Player("boss", line(0))), records):
            pass
    assert other.calls == []


async def test_a_finished_but_unused_step_keeps_its_result_and_cost() -> None:
    side, gate = Player("a", ["side", Usage(1000, 10)], price=DEAR), asyncio.Event()
    stuck = Player("b", ["so far", NEVER], price=DEAR)
    boss = Player("boss", [line(0, "side"), gate, line(1, "main")])
    pool = team(side, stuck, conductor=boss)

    def is_last_step_running() -> bool:
        if side.n_pieces and not side.open_calls:
            gate.set()
        return stuck.n_pieces == 1

    records = await stop_while(pool, ask_for(), is_last_step_running)
    paid_usd = records.record.cost_usd
    last = Player("b", ["the answer", Usage(5, 5)], price=DEAR)
    async with resume_run(team(Player("a"), last, conductor=Player("boss")), records) as run:
        [_ async for _ in run.events()]
    before, after = records.record.plans[0].steps[0], run.record.plans[0].steps[0]
    assert (before.status, after) == ("done", before)
    assert paid_usd is not None
    assert run.record.cost_usd == paid_usd + DEAR.of(Usage(5, 5))


async def test_a_failed_but_unused_step_keeps_its_failure() -> None:
    broken, gate = Player("a", [WorkerRefused("No.", worker="a")]), asyncio.Event()
    stuck = Player("b", ["so far", NEVER])
    pool = team(broken, stuck, conductor=Player("boss", [line(0, "side"), gate, line(1, "main")]))

    def is_last_step_running() -> bool:
        if broken.calls and not broken.open_calls:
            gate.set()
        return stuck.n_pieces == 1

    records = await stop_while(pool, ask_for(), is_last_step_running)
    async with resume_run(team(broken, Player("b", "ok"), conductor=Player("boss")), records) as run:
        [_ async for _ in run.events()]
    step = run.record.plans[0].steps[0]
    assert (run.record.answer, step.status) == ("ok", "failed")
    assert step.failure is not None


async def test_an_interrupted_plan_counts_with_its_maximum_length() -> None:
    silent = Player("boss", [NEVER], price=DEAR)
    task = ask_for(sampling=Sampling(max_output_tokens=5), budget=Budget(max_tokens=100_000))
    pool = team(Player("a"), conductor=silent, max_plan_tokens=300, max_thinking_tokens=40)
    records = await stop_while(pool, task, lambda: silent.open_calls == 1)
    bound = input_bound(silent.calls[0]) + 340
    record = replace(records.record, task=replace(task, budget=Budget(max_tokens=2 * bound - 1)))
    short = Player("boss", [NEVER])
    pool = team(Player("a"), conductor=short, max_plan_tokens=300, max_thinking_tokens=40)
    async with resume_run(pool, RunRecords(record)):
        await until(lambda: short.open_calls == 1)
    assert short.calls[0].sampling.max_output_tokens == 339


async def test_streaming_time_counts_towards_the_deadline() -> None:
    gate = asyncio.Event()
    slow = Player("a", ["one ", gate, "two ", NEVER])
    task = ask_for(plan=a_plan(("a", ())), deadline_s=60.0)

    def has_streamed() -> bool:
        if slow.n_pieces == 1 and time.monotonic() - began_s > 0.3:
            gate.set()
        return slow.n_pieces == 2

    began_s = time.monotonic()
    records = await stop_while(team(slow), task, has_streamed)
    assert records.record.wall_s > 0.2


async def test_a_run_that_resumes_before_its_first_event_has_the_new_owner() -> None:
    queued = RunRecords(Record("wf_1", ask_for(plan=a_plan(("a", ()))), 0.0, ("a",), owner="first"))
    async with resume_run(team(Player("a")), queued, owner="second") as run:
        [_ async for _ in run.events()]
    assert (run.record.status, run.record.owner) == ("finished", "second")


async def cut_again(pool: object, records: RunRecords, state: object) -> RunRecords:
    snapshots: list[object] = []
    async with resume_run(pool, records, journal=lambda *_: None) as run:  # type: ignore[arg-type]
        await until(state)  # type: ignore[arg-type]
        snapshots.append(dump(run.records))
    return load(RunRecords, snapshots[0])


async def test_a_finished_step_is_not_repeated_after_two_interruptions() -> None:
    first = Player("a", "done once")
    records = await stop_while(
        team(first, conductor=Player("boss", [line(0), NEVER])),
        ask_for(),
        lambda: first.n_pieces and not first.open_calls,
    )
    silent = Player("boss", [NEVER])
    records = await cut_again(team(Player("a"), conductor=silent), records, lambda: silent.open_calls == 1)
    last = Player("a", "answer")
    seqs: list[int] = []
    pool = team(last, conductor=Player("boss", line(0) + line(0, "sum up", [0])))
    async with resume_run(pool, records, journal=lambda _, seq, __: seqs.append(seq)) as run:
        [_ async for _ in run.events()]
    assert (run.record.answer, len(last.calls)) == ("answer", 1)
    assert seqs[0] == records.record.seq + 1


async def test_two_equal_subtasks_for_the_team_are_two_recorded_runs() -> None:
    plan = line(1, "the hard part") + line(1, "the hard part") + line(0, "join", [0, 1])
    stuck = Player("a", "one", ["two", NEVER])

    def boss() -> Player:
        return Player(
            "boss",
            lambda call: (
                plan
                if "The team:\n0: the a" in call.messages[0].text and "\n1:" in call.messages[0].text
                else line(0)
            ),
        )

    records = await stop_while(
        team(stuck, conductor=boss()), ask_for(depth=1), lambda: stuck.n_pieces == 2 and stuck.open_calls == 1
    )
    fresh = Player("a", "again", "joined")
    async with resume_run(team(fresh, conductor=boss()), records) as run:
        [_ async for _ in run.events()]
    steps = run.record.plans[-1].steps
    assert len({step.result.inner_run for step in steps[:2]}) == 2
    assert {step.result.inner_run for step in steps[:2]} <= set(run.records.inner)
    assert len(fresh.calls) == 2


async def test_counts_are_equal_after_a_record_is_reloaded() -> None:
    first = Player("a", "done once")
    boss = Player("boss", [line(0), NEVER])
    records = await stop_while(
        team(first, conductor=boss), ask_for(), lambda: first.n_pieces and not first.open_calls
    )
    async with resume_run(team(Player("a"), conductor=Player("boss", line(0))), records) as run:
        [_ async for _ in run.events()]
    again = load(RunRecords, dump(run.records)).record
    assert run.record.plans[-1].steps[-1].reused_from is not None
    assert again.orchestration == run.record.orchestration
