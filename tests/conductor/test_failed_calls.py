"""Failed calls are billed once, for the usage that the server reported before the failure."""

import dataclasses
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

import pytest
from msgspec.structs import replace

from conductor.errors import BudgetExceeded, WorkerBusy, WorkerUnavailable
from conductor.model.call import Call, Sampling
from conductor.model.failure import Attempt, Failure
from conductor.model.messages import Message
from conductor.model.reply import Delta, Reply
from conductor.model.usage import Price, Usage
from conductor.model.worker import Worker
from conductor.run import moves
from conductor.run.call_holds import open_call
from conductor.run.events import CallFailed
from conductor.run.fold import fold
from conductor.run.ledger import Budget, BudgetLedger
from conductor.run.lifecycle import count_spent
from conductor.run.record import Record, RunRecords
from conductor.run.team import Team
from tests.conductor.team import Player, a_plan, ask_for, line, member, run_and_check, team

PRICE = Price(Decimal(1_000_000), Decimal(1_000_000))
"""1 USD per token."""
USAGE_DELTA = Delta(usage=Usage(7, 0))
"""Usage of the prompt, as a server reports it at the start of its stream."""


class CallsTwice:
    """Worker that calls `first`, then `second` if that fails, as the retry and failover layers do."""

    def __init__(self, first: Worker, second: Worker) -> None:
        self._first, self._second = first, second

    @property
    def name(self) -> str:
        return self._first.name

    @property
    def open_calls(self) -> int:
        return self._first.open_calls + self._second.open_calls  # type: ignore[attr-defined]

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        try:
            async with self._first.open(call) as reply:
                yield reply
                return
        except WorkerUnavailable as exc:
            failed = Attempt.of(self._first.name, Failure.of(exc))
        async with self._second.open(call) as reply:
            reply.attempts = (failed, *reply.attempts)
            yield reply


def pool_of(worker: Worker) -> Team:
    one = member(Player("a", price=PRICE))
    engine = team(Player("a"))
    return Team(engine.conductor, {"a": type(one)("a", worker, price=PRICE, worst_price=PRICE)})


async def test_a_failed_attempts_usage_is_recorded_and_billed_once() -> None:
    broken = Player("a", [USAGE_DELTA, WorkerUnavailable("It broke.")], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    run = await run_and_check(pool_of(CallsTwice(broken, other)), ask_for(plan=a_plan(("a", ()))))
    step = run.record.plans[0].steps[0]
    assert (step.result.cost_usd, step.result.attempts[0].cost_usd) == (Decimal(11), Decimal(7))
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal(18)
    assert run.record.usage == Usage(17, 1)


async def test_a_failed_run_costs_the_usage_of_its_failed_call() -> None:
    broken = Player("a", [USAGE_DELTA, WorkerBusy("Come later.", retry_after_s=3.0)], price=PRICE)
    run = await run_and_check(pool_of(broken), ask_for(plan=a_plan(("a", ()), ("a", (0,)))))
    assert run.record.status == "failed"
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal(7), (
        "the step that waited for it is not billed"
    )
    assert run.record.failure.facts["retry_after_s"] == 3.0


async def test_a_call_that_never_reached_its_server_costs_nothing() -> None:
    run = await run_and_check(
        pool_of(Player("a", [WorkerBusy("Full.")], price=PRICE)), ask_for(plan=a_plan(("a", ())))
    )
    assert (run.record.cost_usd, run.ledger.spent_usd, run.record.n_unmetered_calls) == (0, 0, 0)


async def test_a_broken_call_without_usage_costs_its_bound() -> None:
    silent = Player(
        "a", ["half", WorkerUnavailable("It broke.", retryable=True)], ["whole", Usage(10, 1)], price=PRICE
    )
    run = await run_and_check(pool_of(silent), ask_for(plan=a_plan(("a", ()), ("a", (0,)))))
    assert (run.record.status, run.record.n_unmetered_calls) == ("finished", 1)
    (attempt,) = run.record.plans[0].steps[0].cut
    assert (attempt.cost_is_bound, run.record.cost_is_bound, attempt.usage) == (True, True, None)
    assert attempt.cost_usd is not None
    assert attempt.cost_usd > Decimal(22)
    assert run.record.cost_usd == run.ledger.spent_usd == attempt.cost_usd + 2 * Decimal(11)


async def test_a_broken_plan_without_usage_costs_its_bound() -> None:
    writer = Player("conductor", [line("a"), line("nobody"), "never read", Usage(10, 1)], price=PRICE)
    run = await run_and_check(team(Player("a", ["fine", Usage(10, 1)]), conductor=writer), ask_for())
    broken = run.record.plans[0].result
    assert (broken.usage, broken.cost_is_bound) == (None, True)
    assert run.record.cost_usd == run.ledger.spent_usd >= broken.cost_usd > Decimal(11)


BROKEN_PLAN = ['{"worker": 0, ', WorkerUnavailable("It broke.", retryable=True)]


async def test_a_broken_plan_is_written_again_and_both_calls_are_billed() -> None:
    writer = Player("conductor", BROKEN_PLAN, [line("b"), Usage(10, 1)], price=PRICE)
    run = await run_and_check(team(Player("a"), Player("b", ["fine"]), conductor=writer), ask_for())
    assert (run.record.status, run.record.answer, len(writer.calls)) == ("finished", "fine", 2)
    broken, whole = run.record.plans
    assert (broken.failure is not None, [step.worker for step in whole.steps]) == (True, ["b"])
    assert run.record.cost_usd == run.ledger.spent_usd > Decimal(11)


@pytest.mark.parametrize("why", ["it breaks twice", "it was not to be tried again", "it broke late"])
async def test_one_worker_answers_if_the_conductor_cannot_write_a_plan(
    why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = BROKEN_PLAN if why == "it breaks twice" else [line("b")]
    first = (
        BROKEN_PLAN
        if why != "it was not to be tried again"
        else ['{"worker": 0, ', WorkerUnavailable("No.", retryable=False)]
    )
    if why == "it broke late":
        monkeypatch.setattr(moves, "AGAIN_WITHIN_S", 0.0)
    writer = Player("conductor", first, again)
    run = await run_and_check(team(Player("a", ["instead"]), Player("b"), conductor=writer), ask_for())
    assert (run.record.status, run.record.answer) == ("finished", "instead")
    assert len(writer.calls) == (2 if why == "it breaks twice" else 1)
    assert "the conductor failed" in run.record.plans[-1].why


class HoldsTwice(CallsTwice):
    """Worker that also takes a second hold before the second call."""

    @asynccontextmanager
    async def open(self, call: Call) -> AsyncGenerator[Reply]:
        try:
            async with self._first.open(call) as reply:
                yield reply
                return
        except WorkerUnavailable as exc:
            holds = call.terms.holds
            assert holds is not None
            longest = await holds.hold().renew(exc)
            failed = Attempt.of(self._first.name, Failure.of(exc))
        again = replace(call, sampling=replace(call.sampling, max_output_tokens=longest))
        async with self._second.open(again) as reply:
            reply.attempts = (failed, *reply.attempts)
            yield reply


async def test_an_unmetered_failed_call_counts_the_same_in_a_resumed_run() -> None:
    silent = Player(
        "a", [WorkerUnavailable("It fell silent.", worker="a", billed_at_bound=True)], price=PRICE
    )
    pool = pool_of(HoldsTwice(silent, Player("b", ["fine", Usage(10, 1)], price=PRICE)))
    run = await run_and_check(pool, ask_for(plan=a_plan(("a", ()))))
    (unmetered,) = run.record.unmetered_calls
    assert (run.record.n_unmetered_calls, unmetered.cost_usd) == (1, run.record.cost_usd - Decimal(11))
    spent_usd, usage = count_spent(RunRecords(run.record), pool, Decimal(0))
    assert (spent_usd, usage.total_tokens) == (run.ledger.spent_usd, run.ledger.spent_tokens)


async def test_a_failed_attempt_is_recorded_while_the_next_one_runs() -> None:
    broken = Player("a", [USAGE_DELTA, WorkerUnavailable("It broke.")], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    run = await run_and_check(pool_of(HoldsTwice(broken, other)), ask_for(plan=a_plan(("a", ()))))
    (index,) = [n for n, event in enumerate(run.events) if isinstance(event, CallFailed)]
    record = Record(run.record.id, run.record.task, run.record.created)
    early = fold(record, run.events[: index + 1])
    assert early.cost_usd == Decimal(7)
    assert early.plans[0].steps[0].failed == (run.events[index].attempt,)
    assert run.record.plans[0].steps[0].failed == ()
    assert run.record.cost_usd == Decimal(18)


async def call_twice(first: Player, second: Player, budget: Budget) -> tuple[BudgetLedger, Reply]:
    """Make a call of two attempts: at most 33 prompt tokens and 100 answer tokens."""
    one = dataclasses.replace(member(first), worker=HoldsTwice(first, second))
    ledger = BudgetLedger(budget)
    call = Call((Message.of("user", "?"),), Sampling(max_output_tokens=100))
    async with open_call(one, call, ledger) as reply:
        async for _ in reply:
            pass
    assert ledger.holds == []
    return ledger, reply


async def test_a_repeated_call_is_billed_each_time() -> None:
    broken = Player("a", [USAGE_DELTA, WorkerUnavailable("It broke.")], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    ledger, reply = await call_twice(broken, other, Budget(max_cost_usd=Decimal(200)))
    assert (ledger.spent_usd, ledger.spent_tokens) == (18, 18)
    assert [each.cost_usd for each in reply.attempts] == [7]


async def test_the_second_answer_is_limited_to_the_remaining_budget() -> None:
    broken = Player("a", [USAGE_DELTA, WorkerUnavailable("It broke.")], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    _, reply = await call_twice(broken, other, Budget(max_tokens=133))
    assert reply.bound == Usage(33, 93)


async def test_a_failed_call_that_may_be_billed_counts_at_its_bound() -> None:
    silent = Player("a", [WorkerUnavailable("It fell silent.", billed_at_bound=True)], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    ledger, reply = await call_twice(silent, other, Budget(max_cost_usd=Decimal(266)))
    assert ledger.spent_usd == 133 + 11
    assert [(each.cost_usd, each.cost_is_bound) for each in reply.attempts] == [(133, True)]
    assert not reply.result.cost_is_bound


async def test_a_call_is_not_retried_if_the_remaining_budget_is_too_small() -> None:
    silent = Player("a", [WorkerUnavailable("It fell silent.", billed_at_bound=True)], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    with pytest.raises(BudgetExceeded) as caught:
        await call_twice(silent, other, Budget(max_cost_usd=Decimal(150)))
    assert [each.cost_usd for each in caught.value.attempts] == [133]
    assert other.calls == []
