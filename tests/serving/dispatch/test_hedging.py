"""Hedged calls: which call answers, what is billed, and when no hedge is sent."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from itertools import cycle, repeat

import pytest
from msgspec.structs import replace

from conductor.errors import BudgetExceeded, StoreUnavailable, WorkerError, WorkerRefused, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.deltas import open_reply
from conductor.model.messages import Message
from conductor.model.reply import CallResult, Delta, FinishReason, Reply
from conductor.model.terms import LikelyPrompt
from conductor.model.usage import FREE, Price, Usage, estimate, unseen_bytes
from conductor.model.worker import PoolMember, Worker
from conductor.run.call_bound import call_bound, with_defaults
from conductor.run.call_holds import CallHolds, open_call
from conductor.run.ledger import Budget, BudgetLedger, Hold
from serving.dispatch.build import HEDGE_SHARE
from serving.dispatch.call_budgets import RetryBudget
from serving.dispatch.limiter import Limiter
from serving.dispatch.policy import HEDGE_KNOWN_CALLS
from serving.dispatch.target import Target
from serving.health import FAILURES_BEFORE_OPEN, WINDOW, WorkerHealth
from serving.workers.vllm import Chunk, EngineCall, VllmWorker
from tests.serving.dispatch.routes import deployed, dispatcher, route, target
from tests.serving.workers.subjects import Behaviour, ScriptedEngine
from tests.states import until

CALL = Call((Message.of("user", "hi"),))
PRICE = Price(Decimal(1), Decimal(1))
FAST, SLOW, CLOSES_S = 0.02, 5.0, 0.4


class Paced:
    """Worker whose calls wait `delays_s` for their first token. An error class instead of a delay is raised after
    `fails_after_s`.
    """

    name = "w"

    def __init__(self, price: Price = FREE) -> None:
        self.delays_s: Iterator[float | type[WorkerError]] = repeat(FAST)
        self.price, self.fails_after_s, self.closes_s = price, FAST, 0.0
        self.n_calls = self.n_open = 0

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "m", self._deltas(), self.price)

    async def _deltas(self) -> AsyncGenerator[Delta]:
        self.n_calls, self.n_open = self.n_calls + 1, self.n_open + 1
        number, delay = self.n_calls, next(self.delays_s)
        try:
            await asyncio.sleep(delay if isinstance(delay, float) else self.fails_after_s)
            if isinstance(delay, type):
                raise delay("it broke", worker="w")
            for word in (f"call {number}", " said", " so"):
                # Like the timeouts of real workers, which are bound to the task that entered them.
                async with asyncio.timeout(1):
                    yield Delta(word)
            yield Delta(finish=FinishReason.STOP, usage=Usage(3, 3))
        finally:
            try:
                await asyncio.sleep(self.closes_s)
            finally:
                self.n_open -= 1


class SlowLedger(BudgetLedger):
    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        await asyncio.sleep(CLOSES_S)
        await super().settle(hold, cost_usd, usage, is_bound=is_bound)


class AwayLedger(BudgetLedger):
    """Ledger whose store goes away after two holds."""

    n_holds = 0

    def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AbstractAsyncContextManager[Hold]:
        self.n_holds += 1
        if self.n_holds > 2:
            raise StoreUnavailable("The store is away.")
        return super().hold(price, input_tokens, max_output_tokens, what)


class ShortLedger(BudgetLedger):
    rooms: Iterator[int]

    @asynccontextmanager
    async def hold(
        self, price: Price | None, input_tokens: int, max_output_tokens: int, what: str
    ) -> AsyncGenerator[Hold]:
        async with super().hold(price, input_tokens, max_output_tokens, what) as hold:
            hold.max_output_tokens = next(self.rooms)
            yield hold


class Silent(WorkerUnavailable):
    """Failure of a model that worked but sent nothing. Retrying is useless."""

    billed_at_bound = True
    retryable = False


class ReportedFailure(WorkerUnavailable):
    """Failure of a server that reported the cost of the call first."""

    cost_usd = Decimal("0.00001")


class Hedged:
    """A hedged worker with a known usual time to the first token.

    Args:
        price: price of the worker.
        slots: slots of the worker.
        worker: worker to use instead of a `Paced` one.
        places: its deployments, or empty for a single place.
    """

    def __init__(
        self, price: Price = FREE, slots: int = 8, worker: Worker | None = None, places: Sequence[Target] = ()
    ) -> None:
        self.inner, self.health, self.ledger = Paced(price), WorkerHealth(), BudgetLedger()
        for _ in range(HEDGE_KNOWN_CALLS):
            self.health.speak(FAST)
        self.limiter, budget = Limiter("w", slots), RetryBudget(HEDGE_SHARE, start=0.0)
        for _ in range(40):
            budget.earn()  # earned by 40 earlier calls
        self.route = (
            deployed(*places, limiter=self.limiter, health=self.health, hedge_budget=budget)
            if places
            else route(
                worker or self.inner,
                limiter=self.limiter,
                health=self.health,
                price=price,
                hedge_budget=budget,
            )
        )
        self.likely_prompt: LikelyPrompt | None = None
        worker = dispatcher(self.route)
        self.member = PoolMember("w", worker, price=price, worst_price=price, max_output_tokens=50)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Reply]:
        async with asyncio.timeout(3), open_call(self.member, CALL, self.ledger, self.likely_prompt) as reply:
            yield reply

    async def ask(self) -> CallResult:
        async with self.open() as reply:
            async for _ in reply:
                pass
        return reply.result

    def is_clean(self) -> bool:
        return (self.inner.n_open, self.limiter.open_calls, self.ledger.holds) == (0, 0, [])


@pytest.mark.parametrize("price", [FREE, PRICE])
async def test_a_faster_hedge_answers_and_both_calls_are_billed(price: Price):
    it = Hedged(price)
    it.inner.delays_s = iter([SLOW, FAST])
    result = await it.ask()
    assert result.output == "call 2 said so"
    (attempt,) = result.attempts
    assert (attempt.outcome, attempt.hedge, attempt.cost_is_bound) == ("lost_race", False, price == PRICE)
    assert it.ledger.spent_usd == (result.cost_usd or 0) + (attempt.cost_usd or 0)
    assert (attempt.cost_usd is not None) == (price == PRICE)
    assert it.is_clean()


async def test_a_lost_call_is_billed_at_its_own_deployments_price():
    inner = Paced(PRICE)
    places = [
        target(inner, name, price=PRICE, weight=weight) for name, weight in (("east", 1e9), ("west", 1))
    ]
    it = Hedged(PRICE, places=places)
    dear = Price(Decimal(100), Decimal(100))
    # The price of a fallback that is never called.
    it.member = dataclasses.replace(it.member, worst_price=dear)
    inner.delays_s = iter([SLOW, FAST])
    result = await it.ask()
    (attempt,) = result.attempts
    bound = call_bound(it.member, replace(CALL, sampling=with_defaults(it.member, CALL.sampling)))
    assert (attempt.outcome, attempt.deployment, attempt.cost_usd) == ("lost_race", "east", PRICE.most(bound))
    assert it.ledger.spent_usd == (result.cost_usd or 0) + PRICE.most(bound)


async def test_a_lost_call_with_a_likely_prompt_is_billed_at_an_estimate():
    inner = Paced(PRICE)
    it = Hedged(PRICE, worker=inner)
    it.likely_prompt = lambda callee: Usage(2, cached_input_tokens=1)
    inner.delays_s = iter([SLOW, FAST])
    result = await it.ask()
    (attempt,) = result.attempts
    assert attempt.took_s is not None
    likely = estimate(Usage(99, 50), unseen_bytes(attempt.took_s), Usage(2, cached_input_tokens=1))
    assert (attempt.outcome, attempt.cost_usd) == ("lost_race", PRICE.of(likely))
    assert it.ledger.spent_usd == (result.cost_usd or 0) + PRICE.of(likely)


async def test_a_cancelled_call_is_billed_at_its_own_deployments_price():
    inner = Paced(PRICE)
    it = Hedged(PRICE, worker=inner)
    it.member = dataclasses.replace(it.member, worst_price=Price(Decimal(100), Decimal(100)))
    inner.delays_s = repeat(SLOW)
    asking = asyncio.create_task(it.ask())
    await until(lambda: inner.n_open == 2, "it and its hedge are under way")
    asking.cancel()
    await asyncio.wait([asking])
    bound = call_bound(it.member, replace(CALL, sampling=with_defaults(it.member, CALL.sampling)))
    assert it.ledger.spent_usd == 2 * PRICE.most(bound)


async def test_a_slower_hedge_is_closed_and_recorded():
    it = Hedged(PRICE)
    it.inner.delays_s = iter([FAST * 5, SLOW])
    result = await it.ask()
    (attempt,) = result.attempts
    assert (result.output, attempt.outcome, attempt.hedge) == ("call 1 said so", "lost_race", True)
    assert it.ledger.spent_usd == (result.cost_usd or 0) + (attempt.cost_usd or 0)
    assert it.is_clean()


@pytest.mark.parametrize("delays_s", [[FAST * 4, WorkerUnavailable], [WorkerUnavailable, FAST]])
async def test_if_one_of_two_calls_fails_the_other_answers(delays_s: list[float | type[WorkerError]]):
    it = Hedged(PRICE)
    it.inner.delays_s = iter(delays_s)
    if delays_s[0] is WorkerUnavailable:  # it fails before a hedge is due, so there is no second call
        for _ in range(WINDOW):
            it.health.speak(5.0)
        with pytest.raises(WorkerUnavailable):
            await it.ask()
    else:
        result = await it.ask()
        assert [(each.outcome, each.hedge) for each in result.attempts] == [("failed", True)]
        assert it.ledger.spent_usd == result.cost_usd
    assert it.is_clean()


async def test_no_hedge_is_sent_if_slots_are_used_or_a_twentieth_was_hedged():
    it = Hedged(slots=2)
    it.inner.delays_s = repeat(FAST * 3)
    await asyncio.gather(*(it.ask() for _ in range(4)))
    assert it.inner.n_calls == 4, "there was no room"
    it = Hedged(slots=100)
    it.inner.delays_s = cycle([FAST * 3])
    for _ in range(10):
        await it.ask()
    assert 10 < it.inner.n_calls <= 12, "a twentieth of 50 calls"


async def test_no_hedge_is_sent_to_a_worker_whose_circuit_has_opened():
    it = Hedged()
    it.inner.delays_s = repeat(FAST * 3)
    asking = asyncio.create_task(it.ask())
    await until(lambda: it.inner.n_open)
    for _ in range(FAILURES_BEFORE_OPEN):
        it.health.fail()
    assert ((await asking).output, it.inner.n_calls) == ("call 1 said so", 1)


@pytest.mark.parametrize("how", ["read", "leave", "raise", "cancel"])
async def test_the_answer_does_not_wait_until_the_other_call_is_closed(how: str):
    it = Hedged(PRICE)
    it.inner.delays_s, it.inner.closes_s, it.ledger = iter([SLOW, FAST]), CLOSES_S, SlowLedger()
    began_s, before, replies = time.monotonic(), asyncio.all_tasks(), list[Reply]()

    async def read() -> None:
        async with it.open() as reply:
            replies.append(reply)
            deltas = aiter(reply)
            await anext(deltas)
            assert time.monotonic() - began_s < CLOSES_S
            assert (it.inner.n_open, len(it.ledger.holds), len(reply.attempts)) == (2, 2, 1)
            if how == "raise":
                raise WorkerUnavailable("the reader's word for it", worker="w")
            if how == "cancel":
                asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]
                await asyncio.sleep(1)
            if how == "read":
                async for _ in deltas:
                    pass
            await deltas.aclose()

    reading = asyncio.create_task(read())
    (ended,) = await asyncio.gather(reading, return_exceptions=True)
    expected = {"raise": WorkerUnavailable, "cancel": asyncio.CancelledError}
    assert type(ended) is expected.get(how, type(None)), ended
    (attempt,) = replies[0].result.attempts
    assert attempt.outcome == "lost_race"
    assert it.ledger.spent_usd == (replies[0].result.cost_usd or 0) + (attempt.cost_usd or 0)
    assert attempt.cost_usd
    assert it.is_clean()
    assert asyncio.all_tasks() == before


async def test_a_failed_hedge_does_not_delay_the_first_call():
    it = Hedged(PRICE)
    it.inner.delays_s, it.ledger = iter([FAST * 5, WorkerUnavailable]), SlowLedger()
    began_s, before = time.monotonic(), asyncio.all_tasks()
    async with it.open() as reply:
        assert time.monotonic() - began_s < CLOSES_S
        async for _ in reply:
            pass
    assert [(each.outcome, each.hedge) for each in reply.result.attempts] == [("failed", True)]
    assert it.is_clean()
    assert asyncio.all_tasks() == before


@pytest.mark.parametrize("pieces", [0, 1, 3])
async def test_leaving_a_hedged_call_early_leaves_nothing_open(pieces: int):
    for how in ("leave", "raise", "cancel"):
        it = Hedged(PRICE)
        it.inner.delays_s = iter([SLOW, FAST])

        async def read(it: Hedged = it, how: str = how) -> None:
            async with it.open() as reply:
                n_read = 0
                deltas = aiter(reply)
                while n_read < pieces:
                    await anext(deltas)
                    n_read += 1
                if how == "raise":
                    raise WorkerUnavailable("the reader's word for it", worker="w")
                if how == "cancel":
                    asyncio.current_task().cancel()  # pyright: ignore[reportOptionalMemberAccess]
                    await asyncio.sleep(1)
                await deltas.aclose()

        (ended,) = await asyncio.gather(asyncio.create_task(read()), return_exceptions=True)
        assert isinstance(
            ended, {"leave": type(None), "raise": WorkerUnavailable, "cancel": BaseException}[how]
        )
        assert it.is_clean()


class Deployed:
    """Worker whose deployments each have a delay or an error. They are chosen in order."""

    def __init__(self, price: Price = FREE, **delays_s: float | type[WorkerError]) -> None:
        self.inner = {name: Paced(price) for name in delays_s}
        self.health = {name: WorkerHealth() for name in delays_s}
        self.limiters = {name: Limiter("w", 8) for name in delays_s}
        places: list[Target] = []
        for name, delay_s in delays_s.items():
            self.inner[name].delays_s = repeat(delay_s)
            place = target(
                self.inner[name],
                name,
                limiter=self.limiters[name],
                health=self.health[name],
                price=price,
                weight=1e9 ** -len(places),
            )
            places.append(place)
        self.hedged = Hedged(price, places=places)
        self.bound_usd = price.most(call_bound(self.hedged.member, CALL))

    def afford(self, calls: float) -> None:
        """Limit the budget to this many calls at their bound."""
        self.hedged.ledger.budget = Budget(max_cost_usd=self.bound_usd * Decimal(calls))

    def is_paid_as_on_record(self, result: CallResult) -> bool:
        on_record = [result.cost_usd, *(each.cost_usd for each in result.attempts)]
        return self.hedged.is_clean() and self.hedged.ledger.spent_usd == sum(each or 0 for each in on_record)

    @property
    def n_calls(self) -> dict[str, int]:
        return {name: inner.n_calls for name, inner in self.inner.items()}


async def test_a_hedge_uses_another_deployment():
    it = Deployed(a=SLOW, b=FAST)
    result = await it.hedged.ask()
    assert (result.deployment, it.n_calls) == ("b", {"a": 1, "b": 1})
    assert [each.outcome for each in result.attempts] == ["lost_race"]


async def test_no_hedge_is_sent_without_another_free_deployment():
    alone = Deployed(a=FAST * 5)
    await alone.hedged.ask()
    assert alone.n_calls == {"a": 1}
    resting = Deployed(a=FAST * 5, b=FAST)
    for _ in range(3):
        resting.health["b"].fail()
    await resting.hedged.ask()
    assert resting.n_calls == {"a": 1, "b": 0}


@pytest.mark.parametrize("is_hedged", [False, True])
async def test_a_failed_deployments_call_is_billed_before_the_next_is_called(is_hedged: bool):
    it = Deployed(PRICE, a=Silent, b=Silent, c=FAST)
    if not is_hedged:
        it.hedged.route.hedge_budget = None
    for _ in range(HEDGE_KNOWN_CALLS):
        it.hedged.health.speak(SLOW)  # so that no first token counts as late
    result = await it.hedged.ask()
    attempts = [(each.deployment, each.cost_usd, each.cost_is_bound) for each in result.attempts]
    assert attempts == [("a", it.bound_usd, True), ("b", it.bound_usd, True)]
    assert it.is_paid_as_on_record(result)


async def test_no_other_deployment_is_called_without_budget():
    it = Deployed(PRICE, a=Silent, b=FAST)
    it.afford(1.5)
    with pytest.raises(BudgetExceeded) as caught:
        await it.hedged.ask()
    assert it.n_calls == {"a": 1, "b": 0}
    assert [each.cost_usd for each in caught.value.attempts] == [it.bound_usd]
    assert (it.hedged.ledger.spent_usd, it.hedged.is_clean()) == (it.bound_usd, True)


async def test_earlier_failures_of_the_lost_call_are_recorded():
    it = Deployed(PRICE, a=Silent, b=SLOW, c=FAST)
    it.inner["a"].fails_after_s = 0.0
    result = await it.hedged.ask()
    attempts = [(each.outcome, each.cost_usd) for each in result.attempts]
    assert (result.deployment, attempts) == ("c", [("failed", it.bound_usd), ("lost_race", it.bound_usd)])
    assert it.is_paid_as_on_record(result)


@pytest.mark.parametrize("fails", [False, True])
async def test_a_hedges_retry_waits_for_the_first_calls_hold(fails: bool):
    it = Deployed(PRICE, a=FAST * 6, b=Silent, c=FAST)
    if fails:
        it.inner["a"].delays_s, it.inner["a"].fails_after_s = repeat(WorkerRefused), FAST * 6
    it.afford(2.5)
    result = await it.hedged.ask()
    attempts = [(each.outcome, each.cost_usd) for each in result.attempts]
    if fails:
        assert (it.n_calls["c"], attempts) == (1, [("failed", None), ("failed", it.bound_usd)])
    else:
        assert (it.n_calls["c"], attempts) == (0, [("failed", it.bound_usd), ("lost_race", None)])
    assert it.is_paid_as_on_record(result)


async def test_a_hedge_without_a_hold_leaves_the_answer_to_the_first_call():
    it = Deployed(PRICE, a=FAST * 30, b=Silent, c=FAST)
    it.hedged.ledger = AwayLedger()
    result = await it.hedged.ask()
    attempts = [(each.outcome, each.cost_usd) for each in result.attempts]
    assert (result.deployment, attempts) == ("a", [("failed", it.bound_usd)])
    assert it.is_paid_as_on_record(result)


async def test_no_hedge_is_sent_if_its_answer_could_exceed_the_hold():
    it = Deployed(PRICE, a=Silent, b=FAST * 6, c=FAST)
    it.inner["a"].fails_after_s = 0.0
    it.hedged.ledger = ledger = ShortLedger()
    ledger.rooms = iter([50, 30, 40])
    result = await it.hedged.ask()
    assert (result.deployment, it.n_calls["c"]) == ("b", 0)
    assert it.is_paid_as_on_record(result)


async def test_a_failed_hedge_is_billed_as_recorded_although_the_first_call_answers():
    it = Deployed(PRICE, a=FAST * 6, b=ReportedFailure, c=FAST)
    it.hedged.ledger = SlowLedger()
    result = await it.hedged.ask()
    attempts = [(each.outcome, each.cost_usd) for each in result.attempts]
    assert (it.n_calls["c"], attempts) == (0, [("failed", ReportedFailure.cost_usd), ("lost_race", None)])
    assert it.is_paid_as_on_record(result)


async def test_a_failure_in_the_lost_call_is_neither_billed_twice_nor_retried():
    it = Deployed(PRICE, a=FAST, b=FAST)
    it.afford(3.5)
    member, ledger = it.hedged.member, it.hedged.ledger
    bound = call_bound(member, CALL)
    async with (
        ledger.hold(PRICE, bound.input_tokens, bound.output_tokens, "another call") as other,
        CallHolds(ledger, member, bound) as holds,
    ):
        assert await holds.hold_second()
        first, hedge = holds.hold(), holds.hold(hedge=True)
        waiting = asyncio.create_task(first.renew(Silent("It fell silent.")))
        await until(lambda: len(holds.failed) == 1 and ledger.spent_usd == it.bound_usd)
        holds.drop(hedge=False, took_s=FAST)
        await ledger.settle(other, Decimal(0), Usage())  # now the budget has room
        with pytest.raises(Silent):
            await waiting
        with pytest.raises(Silent):
            await first.renew(Silent("And again."))
        await holds.settle_dropped()
        assert (ledger.spent_usd, len(ledger.holds)) == (it.bound_usd, 1)
        assert await hedge.renew(Silent("So did the other.")) == bound.output_tokens
        assert (ledger.spent_usd, len(ledger.holds)) == (2 * it.bound_usd, 1)


async def test_a_failed_hedge_uses_tokens_and_an_unsent_one_does_not():
    it = Deployed(PRICE, a=FAST, b=FAST)
    it.afford(3.5)
    member, ledger = it.hedged.member, it.hedged.ledger
    bound = call_bound(member, CALL)
    async with CallHolds(ledger, member, bound) as holds:
        assert await holds.hold_second()
        holds.drop(hedge=True, took_s=FAST, error=Silent("It fell silent."))
        await holds.settle_dropped()
        assert (ledger.spent_usd, ledger.spent_tokens) == (it.bound_usd, bound.total_tokens)
        assert await holds.hold_second()
    assert (ledger.spent_usd, ledger.spent_tokens) == (2 * it.bound_usd, 2 * bound.total_tokens)


class Breaking(Paced):
    """Worker that cancels its own call after a word, as a library with leaking cancel scopes may."""

    async def _deltas(self) -> AsyncGenerator[Delta]:
        yield Delta("It")
        await asyncio.sleep(FAST)
        raise asyncio.CancelledError


async def test_a_stream_that_cancels_itself_ends_its_reader_with_an_error():
    it = Hedged(PRICE, worker=Breaking())
    with pytest.raises(WorkerUnavailable, match="w cancelled its own call"):
        await it.ask()
    assert it.is_clean()


class Failing(Paced):
    """Worker whose server sends an error after the end of the answer."""

    async def _deltas(self) -> AsyncGenerator[Delta]:
        async for delta in super()._deltas():
            yield delta
        raise WorkerUnavailable("too late", worker=self.name)


async def test_an_error_handled_by_the_reader_is_handled_in_a_separate_task_too():
    it = Hedged(PRICE, worker=Failing())
    async with it.open() as reply:
        with pytest.raises(WorkerUnavailable, match="too late"):
            [_ async for _ in reply]
    assert it.is_clean()


class Routed(ScriptedEngine):
    """Engine with several replicas, chosen as by `PrefixRouter`. The first is slow."""

    def __init__(self, *replicas: str) -> None:
        super().__init__(Behaviour(text="Yes."))
        self.replicas, self.asked_at = set(replicas), list[str]()

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        places = call.places
        assert places
        if self.replicas:
            chosen = min(self.replicas - places.used_names)
            places.take(chosen, lambda: bool(self.replicas - places.used_names))
            self.asked_at.append(chosen)
        await asyncio.sleep(FAST * 5 if len(self.calls) == 0 else 0)
        async for chunk in super().generate(call, waiting):
            yield chunk


@pytest.mark.parametrize(
    ("replicas", "asked_at"),
    [(["a", "b"], ["a", "b"]), (["a"], ["a"]), ([], [])],
    ids=["two", "one", "unknown"],
)
async def test_an_engines_hedge_uses_another_replica_or_is_not_sent(replicas: list[str], asked_at: list[str]):
    engine = Routed(*replicas)
    await Hedged(worker=VllmWorker("w", "m", engine)).ask()
    assert engine.asked_at == asked_at
    assert engine.n_requests <= max(1, len(asked_at))


async def test_a_call_still_queued_when_another_answers_costs_nothing():
    it = Deployed(PRICE, a=FAST, b=FAST)
    for limiter in it.limiters.values():
        limiter.resize(0)
    asking = asyncio.create_task(it.hedged.ask())
    await until(lambda: it.limiters["a"].queued)
    it.limiters["b"].resize(8)
    result = await asking
    (attempt,) = result.attempts
    assert (result.deployment, it.n_calls) == ("b", {"a": 0, "b": 1})
    assert (attempt.outcome, attempt.cost_usd, attempt.cost_is_bound) == ("lost_race", None, False)
    assert attempt.message.startswith("The call was still queued")
    assert it.is_paid_as_on_record(result)
