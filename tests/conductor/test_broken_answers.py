"""Answers that break off before the client has seen all of them continue, and are paid for once. A failed step may be
skipped.
"""

import asyncio
from contextlib import AbstractAsyncContextManager
from dataclasses import replace as replace_member
from decimal import Decimal

import pytest
from msgspec.structs import replace

from conductor.errors import BudgetExceeded, Interrupted, WorkerRefused, WorkerUnavailable
from conductor.model.call import AnswerFormat, Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.reply import Reply
from conductor.model.usage import Price, Usage
from conductor.plan.plan import Plan
from conductor.run.codec import dump, load
from conductor.run.events import Event, StepContinued, StepRestarted
from conductor.run.fold import StepBreak
from conductor.run.ledger import Budget, BudgetLedger
from conductor.run.lifecycle import count_spent, open_run
from conductor.run.partial_answer import MARK_TOKENS
from conductor.run.record import Record, RunRecords
from conductor.run.task import Task
from conductor.run.team import ConductorModel, Team
from tests.conductor.team import (
    NEVER,
    Pause,
    Player,
    RunResult,
    Script,
    a_plan,
    ask_for,
    line,
    member,
    run_and_check,
    team,
)
from tests.states import until

PRICE = Price(Decimal(1), Decimal(1))


def breaks() -> WorkerUnavailable:
    return WorkerUnavailable("It broke.", worker="a")


ALONE = a_plan(("a", ()))


async def run_of(player: Player, *, continues: bool = True, **facts: object) -> RunResult:
    own = member(player, continues=continues)
    task = replace(ask_for(plan=ALONE), **facts)  # type: ignore[arg-type]
    return await run_and_check(Team(None, {"a": own}), task)


async def test_a_broken_answer_continues_and_each_call_is_billed():
    player = Player("a", ["It is", breaks()], [" fo", breaks()], ["ur.", Usage(20, 2)], price=PRICE)
    run = await run_of(player)
    assert (run.text, run.record.answer, run.record.status) == ("It is four.", "It is four.", "finished")
    assert [call.prefix for call in player.calls] == ["", "It is", "It is fo"]
    assert [call.terms.broken for call in player.calls] == [frozenset(), {("a", "")}, {("a", "")}]
    assert [call.site.attempt for call in player.calls] == [1, 2, 3]
    assert [call.terms.is_first_paid_call for call in player.calls] == [True, False, False], (
        "no line sends it away any more"
    )
    assert (len(run.of(StepContinued)), run.of(StepRestarted)) == (2, [])
    (step,) = run.record.plans[0].steps
    assert [(attempt.outcome, attempt.cost_is_bound) for attempt in step.cut] == [("cut", True)] * 2
    assert step.result
    assert step.result.usage == Usage(20, 2)
    assert step.result.notes == (
        "This answer continues the first 8 characters, which came from a before its stream was interrupted.",
    )
    assert run.record.cost_usd == run.ledger.spent_usd


async def test_a_call_states_whether_its_answer_can_continue_after_a_break():
    """A call whose answer continues may be ended by an unusually long pause."""
    cases = {
        "goes on": {},
        "a form": {"answer_format": AnswerFormat(None)},
        "told": {"continues": False},
    }
    for why, facts in cases.items():
        player = Player("a", ["It is four."])
        await run_of(player, **facts)  # type: ignore[arg-type]
        assert [call.terms.outlasts_break for call in player.calls] == [why == "goes on"], why


async def test_a_broken_answer_that_cannot_continue_fails_with_the_number_of_characters():
    player = Player("a", ["It is", breaks()], [WorkerRefused("No.", worker="a")], price=PRICE)
    run = await run_of(player)
    assert run.text == "It is"
    assert isinstance(run.error, WorkerUnavailable)
    assert run.error.message == "It broke. The answer ends after 5 characters, and the rest is missing."
    assert [each.error for each in run.error.attempts] == ["WorkerRefused"]
    (step,) = run.record.plans[0].steps
    assert step.result
    assert step.result.output == "It is"
    assert run.record.cost_usd == run.ledger.spent_usd


async def run_past_client(*scripts: Script, **facts: object) -> tuple[RunResult, list[Event]]:
    """Run with a client that disconnects. Return what the client read and all events."""
    happened: list[Event] = []
    task = replace(ask_for(plan=ALONE), may_change=True, **facts)  # type: ignore[arg-type]
    player, ledger = Player("a", *scripts, price=PRICE), BudgetLedger()
    pool = Team(None, {"a": member(player, continues=True)})
    async with open_run(
        pool, task, ledger=ledger, journal=lambda _, __, event: happened.append(event)
    ) as run:
        read = [event async for event in run.events()]
        await until(lambda: run.record.status != "running")
        return RunResult(read, run.record, ledger), happened


REFUSED = [WorkerUnavailable("It does not go on.", worker="b", only_this_call=True)]


async def test_a_background_runs_answer_that_cannot_continue_is_restarted_for_later_readers():
    run, happened = await run_past_client(["It is", breaks()], REFUSED, ["Four.", Usage(20, 2)])
    assert run.text == "It is"
    assert isinstance(run.error, Interrupted), "its client is told, and asks again"
    assert (run.record.status, run.record.answer) == ("finished", "Four.")
    assert [type(event) for event in happened if isinstance(event, StepBreak)] == [
        StepContinued,
        StepRestarted,
    ]
    (step,) = run.record.plans[0].steps
    assert [(attempt.worker, attempt.outcome, attempt.message) for attempt in step.cut] == [
        ("a", "cut", "It broke."),
        ("b", "failed", "It does not go on."),
    ]
    assert run.record.cost_usd == run.ledger.spent_usd
    assert load(Record, dump(run.record)) == run.record


async def test_a_background_runs_answer_is_restarted_immediately_if_it_may_not_continue():
    run, _ = await run_past_client(["{", breaks()], ["{}"], answer_format=AnswerFormat(None))
    assert (run.text, type(run.error), run.record.answer) == ("{", Interrupted, "{}")


async def test_a_background_runs_answer_is_restarted_at_most_once():
    run, happened = await run_past_client(["It is", breaks()], REFUSED, ["Four", breaks()], REFUSED)
    assert run.record.status == "failed"
    assert sum(isinstance(event, StepRestarted) for event in happened) == 1


async def test_a_repeatedly_broken_answer_continues_twice_and_restarts_once():
    broken: list[frozenset[tuple[str, str]]] = []

    def break_off(call: Call) -> list[object]:
        broken.append(call.terms.broken)
        return ["It is", breaks()]

    run, happened = await run_past_client(break_off)
    assert run.record.status == "failed"
    assert [type(event) for event in happened if isinstance(event, StepBreak)] == [
        StepContinued,
        StepContinued,
        StepRestarted,
    ]
    assert broken == [frozenset(), *[{("a", "")}] * 3], "also where it was written again"


class Chain(Player):
    """Worker that reports a different callee for each call."""

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply("abc"[len(self.calls)], "m", self._deltas(call), self.price)


async def test_workers_that_broke_off_before_any_output_are_last_for_the_continuation():
    has_ended = asyncio.Event()

    def end_plan(call: Call) -> list[object]:
        has_ended.set()
        return ["It is", Pause(50), breaks()]

    player = Chain("a", ["It", breaks()], end_plan, [" four."])
    own = member(player, continues=True, has_fallback=True)
    planner = ConductorModel(member(Player("boss", [line(0), has_ended])), format="steps")
    run = await run_and_check(Team(planner, {"a": own}), ask_for())
    assert (run.record.answer, run.text) == ("It is four.", "It is four.")
    assert [len(run.of(kind)) for kind in (StepRestarted, StepContinued)] == [1, 1]
    assert [call.terms.broken for call in player.calls] == [frozenset(), {("a", "")}, {("a", ""), ("b", "")}]


async def test_a_broken_call_is_recorded_once_if_the_budget_permits_no_retry():
    paid = [WorkerUnavailable("It does not go on.", worker="a", only_this_call=True, billed_at_bound=True)]
    of_two = Budget(max_cost_usd=Decimal("0.0050"))
    run, happened = await run_past_client(["It is", breaks()], paid, ["Four."], budget=of_two)
    assert [type(event) for event in happened if isinstance(event, StepBreak)] == [
        StepContinued,
        StepRestarted,
    ]
    assert (run.record.status, run.record.cost_usd) == ("failed", run.ledger.spent_usd)
    assert run.record.cost_is_bound


async def test_a_cancelled_continuation_is_counted_as_unmetered():
    player = Player("a", ["It is", breaks()], [NEVER], price=PRICE)
    run = await run_of(player, deadline_s=0.2)
    (step,) = run.record.plans[0].steps
    assert (step.status, step.result and step.result.output) == ("cancelled", "It is")
    assert (run.record.n_unmetered_calls, run.record.usage) == (2, Usage())
    assert [attempt.cost_usd for attempt in step.cut] == [run.record.cost_usd], "what broke off, at its bound"
    own = Team(None, {"a": member(player, continues=True)})
    spent_usd, _ = count_spent(RunRecords(run.record), own, Decimal(0))
    assert spent_usd > run.record.cost_usd, "who goes on with such a run counts the open call too"
    dear = replace_member(own.pool["a"], worst_price=Price(Decimal(10), Decimal(10)))
    planned = Team(None, {"a": replace_member(own.pool["a"], planned=dear)})
    conducted = replace(run.record, task=replace(run.record.task, plan=None))
    dear_usd, _ = count_spent(RunRecords(conducted), planned, Decimal(0))
    assert dear_usd > 2 * spent_usd, "it may have been sent to a worker that a conductor's plan calls first"


@pytest.mark.parametrize(
    "facts",
    [
        {"continues": False},
        {"answer_format": AnswerFormat(None)},
        {"stream": True, "sampling": Sampling(options=replace(Sampling().options, top_logprobs=1))},
    ],
    ids=["the settings say so", "it is JSON", "its tokens are accounted for"],
)
async def test_some_broken_answers_may_not_continue(facts: dict[str, object]):
    player = Player("a", ["It is", breaks()], [" four."])
    run = await run_of(player, **facts)  # type: ignore[arg-type]
    assert (run.text, len(player.calls)) == ("It is", 1)
    assert run.error.message.endswith("The answer ends after 5 characters, and the rest is missing.")


async def test_a_continuation_has_the_remaining_length_and_a_reservation():
    player = Player("a", ["four words of it ", breaks()], ["end."])
    await run_of(player, sampling=Sampling(max_output_tokens=100))
    assert [call.terms.rest_tokens for call in player.calls] == [None, 96]
    most = [call.sampling.max_output_tokens for call in player.calls]
    assert most == [100, 96 + MARK_TOKENS + len("four words of it")], "and what may have to be repeated"
    dear = Player("a", ["It is so. " * 400, breaks()], [" four."], price=PRICE)
    run = await run_of(dear, budget=Budget(max_cost_usd=Decimal("0.005")))
    assert len(dear.calls) == 1
    assert isinstance(run.error, WorkerUnavailable)
    assert not isinstance(run.error, BudgetExceeded)
    assert "the rest is missing. A call to a could cost $" in run.error.message
    assert run.error.message.endswith("Raise podium.max_cost_usd.")
    assert run.record.cost_usd == run.ledger.spent_usd


def skipping(**facts: object) -> Task:
    return ask_for(plan=a_plan(("a", ()), ("b", ()), ("c", (0, 1))), **facts)


async def test_steps_that_read_a_skipped_step_see_its_error_and_continue():
    broken = Player("b", [WorkerRefused("b says no.", worker="b")])
    reader = Player("c", "All there is.")
    run = await run_and_check(
        team(Player("a", "A reason."), broken, reader), skipping(on_step_failure="skip")
    )
    assert (run.record.status, run.record.answer) == ("finished", "All there is.")
    assert [step.status for step in run.record.plans[0].steps] == ["done", "failed", "done"]
    prompt = reader.calls[0].messages[-1].text
    assert "A reason." in prompt
    assert "[this step failed: b says no.]" in prompt


async def test_only_a_step_that_allows_it_is_skipped_and_never_the_last():
    def plan(*, on_failure: str) -> Plan:
        first, second = a_plan(("a", ()), ("b", (0,))).steps
        return Plan((replace(first, on_failure=on_failure), second))  # type: ignore[arg-type]

    no = WorkerRefused("No.", worker="a")
    failing = await run_and_check(
        team(Player("a", [no]), Player("b")), ask_for(plan=plan(on_failure="fail"), on_step_failure="skip")
    )
    skipped = await run_and_check(team(Player("a", [no]), Player("b")), ask_for(plan=plan(on_failure="skip")))
    last = await run_and_check(
        team(Player("a"), Player("b", [no])), ask_for(plan=plan(on_failure="skip"), on_step_failure="skip")
    )
    assert [run.record.status for run in (failing, skipped, last)] == ["failed", "finished", "failed"]
