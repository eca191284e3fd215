"""A call that failed may be billed all the same: what its server said before it failed is on the bill, once."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from decimal import Decimal

from conductor.errors import WorkerBusy, WorkerUnavailable
from conductor.model.failure import Attempt, Failure
from conductor.model.usage import Price, Usage
from conductor.model.worker import Call, Delta, Reply, Worker
from conductor.run.team import Team
from tests.conductor.team import Player, a_plan, ask_for, member, seen, team

PRICE = Price(Decimal(1_000_000), Decimal(1_000_000))
"""A dollar a token."""
TOLD = Delta(usage=Usage(7, 0))
"""As a server says at the start of its stream what the prompt took."""


class Twice:
    """Asks `first`, and `second` where that fails: as the layers do that retry and fail over."""

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
    made = team(Player("a"))
    return Team(made.conductor, {"a": type(one)("a", worker, price=PRICE, worst_price=PRICE)})


async def test_what_a_failed_attempt_took_is_on_the_record_and_in_the_ledger_once() -> None:
    broken = Player("a", [TOLD, WorkerUnavailable("It broke.")], price=PRICE)
    other = Player("b", ["fine", Usage(10, 1)], price=PRICE)
    run = await seen(pool_of(Twice(broken, other)), ask_for(plan=a_plan(("a", ()))))
    step = run.record.plans[0].steps[0]
    assert (step.result.cost_usd, step.result.attempts[0].cost_usd) == (Decimal(11), Decimal(7))
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal(18)
    assert run.record.usage == Usage(17, 1)


async def test_a_run_that_failed_costs_what_its_failed_call_took() -> None:
    broken = Player("a", [TOLD, WorkerBusy("Come later.", retry_after_s=3.0)], price=PRICE)
    run = await seen(pool_of(broken), ask_for(plan=a_plan(("a", ()), ("a", (0,)))))
    assert run.record.status == "failed"
    assert run.record.cost_usd == run.ledger.spent_usd == Decimal(7), (
        "the step that waited for it is not billed"
    )
    assert run.record.failure.facts["retry_after_s"] == 3.0


async def test_a_call_that_never_reached_its_server_costs_nothing() -> None:
    run = await seen(
        pool_of(Player("a", [WorkerBusy("Full.")], price=PRICE)), ask_for(plan=a_plan(("a", ())))
    )
    assert (run.record.cost_usd, run.ledger.spent_usd, run.record.n_unmetered_calls) == (0, 0, 0)
