"""Runs that a process hands over when it stops gracefully: the record keeps what is known of the calls it closes."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest
from msgspec.structs import replace

from conductor.model.call import Call
from conductor.model.failure import Attempt
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Usage
from conductor.run.codec import dump, load
from conductor.run.events import Event, RunDetached
from conductor.run.fold import CUT
from conductor.run.lifecycle import open_run, resume_run
from conductor.run.record import RunRecords
from tests.conductor.continuing import CASES, faults, run_on, run_until, run_whole
from tests.conductor.team import DEAR, NEVER, Player, a_plan, ask_for, line, team
from tests.states import until


@pytest.mark.parametrize("case", range(CASES))
async def test_a_detached_run_resumes_and_its_open_calls_are_recorded(
    case: int,
) -> None:
    whole = await run_whole(case)
    n_events = 0
    while True:
        n_events += 2
        first, records = await run_until(case, n_events)
        if first.status == "finished" or first.status == "failed":
            break
        assert first.status == "detached"
        assert first.known_usd == first.billed_usd
        assert not [step for record in records for step in record.steps if step.status == "running"]
        assert faults(whole, records, await run_on(case, dump(records))) == [], n_events
    assert n_events > 2, "the run was detached at least once"


async def test_detaching_a_run_ends_its_readers_and_records_the_open_calls_cost() -> None:
    journal: list[Event] = []
    plan, usage = a_plan(("a", ()), ("b", (0,))), Usage(100, 7)
    stuck = Player("b", [Delta("so far", usage=usage), Usage(100, 9), NEVER], price=DEAR)
    async with open_run(
        team(Player("a", "fine"), stuck),
        ask_for(plan=plan),
        journal=lambda _, __, event: journal.append(event),
    ) as run:
        other = run.subscribe()
        await until(lambda: run.record.answer_began_s is not None)
        run.detach()
    assert [type(event) async for event in other][-1] is RunDetached
    assert isinstance(journal[-1], RunDetached)
    step = run.record.plans[0].steps[1]
    assert (run.record.status, step.status, stuck.open_calls) == ("detached", "planned", 0)
    cut = Attempt("b", "Interrupted", CUT.message, outcome="cut", usage=usage, cost_usd=DEAR.of(usage))
    assert [replace(each, took_s=None) for each in step.cut] == [cut]
    assert (run.record.cost_usd, run.record.n_unmetered_calls) == (DEAR.of(usage), 0)

    fresh = Player("b", ["the answer", Usage(5, 5)], price=DEAR)
    snapshot = load(RunRecords, dump(run.records))
    async with resume_run(team(Player("a"), fresh), snapshot, owner="next") as run:
        [_ async for _ in run.events()]
    assert (run.record.status, run.record.answer, run.record.owner) == ("finished", "the answer", "next")
    assert run.record.cost_usd == DEAR.of(usage) + DEAR.of(Usage(5, 5))
    assert fresh.calls[0].site.attempt == 2


async def test_an_inner_run_detaches_and_resumes_with_its_outer_run() -> None:
    def boss() -> Player:
        whole = line(1, "the hard part") + line(0, "sum up", [0])
        return Player("boss", lambda call: whole if "\n1:" in call.messages[0].text else line(0))

    stuck = Player("a", ["inner", NEVER])
    async with open_run(team(stuck, conductor=boss()), ask_for(depth=1)) as run:
        await until(lambda: stuck.n_pieces == 1)
        run.detach()
    assert [record.status for record in run.records] == ["detached", "detached"]
    fresh = Player("a", "inner", "outer")
    snapshot = load(RunRecords, dump(run.records))
    async with resume_run(team(fresh, conductor=boss()), snapshot) as run:
        [_ async for _ in run.events()]
    assert [record.status for record in run.records] == ["finished", "finished"]
    assert (run.record.answer, len(fresh.calls)) == ("outer", 2)


async def test_failed_attempts_before_an_interrupted_call_keep_their_usage() -> None:
    paid = Attempt("a", "WorkerUnavailable", "It broke.", usage=Usage(50, 1), cost_usd=Decimal("0.25"))

    class Second(Player):
        @asynccontextmanager
        async def open(self, call: Call) -> AsyncGenerator[Reply]:  # type: ignore[override]
            async with super().open(call) as reply:
                reply.attempts = (paid, replace(paid, usage=None, cost_usd=None))
                yield reply

    stuck = Second("b", ["so far", NEVER], price=DEAR)
    async with open_run(team(stuck), ask_for(plan=a_plan(("b", ())))) as run:
        await until(lambda: stuck.n_pieces == 1)
        run.detach()
    async with resume_run(team(Player("b", "ok")), load(RunRecords, dump(run.records))) as run:
        [_ async for _ in run.events()]
    assert [attempt.outcome for attempt in run.record.plans[0].steps[0].cut] == ["failed", "failed", "cut"]
    assert run.record.usage == Usage(60, 2)
    assert run.record.n_unmetered_calls == 1, "failed calls are metered by their errors"
