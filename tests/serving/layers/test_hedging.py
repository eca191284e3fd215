"""A second call where the first is late: who answers, what is paid, and when none is made."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from decimal import Decimal
from itertools import cycle, repeat

import pytest

from conductor.errors import WorkerError, WorkerUnavailable
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.pool_member import PoolMember
from conductor.model.reply import CallResult, Delta, FinishReason, Reply, open_reply
from conductor.model.usage import FREE, Price, Usage
from conductor.model.worker import Worker
from conductor.run.call import open_call
from conductor.run.ledger import BudgetLedger, Hold
from serving.health import FAILURES_BEFORE_REST, WorkerHealth
from serving.layers.balancing import Balancing, Deployment
from serving.layers.hedging import KNOWN_CALLS, Hedging
from serving.layers.limited import Limited
from serving.layers.watched import Watched
from serving.workers.vllm import Chunk, EngineCall, VllmWorker
from tests.serving.states import until
from tests.serving.workers.subjects import Behaviour, ScriptedEngine

CALL = Call((Message.of("user", "hi"),))
PRICE = Price(Decimal(1), Decimal(1))
FAST, SLOW, CLOSES_S = 0.02, 5.0, 0.4


class Paced:
    """A worker whose calls take as long until the first token as `delays_s` says, call by call; an error's class in
    place of a time is raised after `FAST`.
    """

    name = "w"

    def __init__(self, price: Price = FREE) -> None:
        self.delays_s: Iterator[float | type[WorkerError]] = repeat(FAST)
        self.price, self.closes_s = price, 0.0
        self.n_calls = self.n_open = 0

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "m", self._deltas(), self.price)

    async def _deltas(self) -> AsyncGenerator[Delta]:
        self.n_calls, self.n_open = self.n_calls + 1, self.n_open + 1
        number, delay = self.n_calls, next(self.delays_s)
        try:
            await asyncio.sleep(delay if isinstance(delay, float) else FAST)
            if isinstance(delay, type):
                raise delay("it broke", worker="w")
            for word in (f"call {number}", " said", " so"):
                async with asyncio.timeout(1):  # as workers have them: of the task that began it
                    yield Delta(word)
            yield Delta(finish=FinishReason.STOP, usage=Usage(3, 3))
        finally:
            try:
                await asyncio.sleep(self.closes_s)
            finally:
                self.n_open -= 1


class SlowLedger(BudgetLedger):
    """One whose settling takes a while, as a store's does."""

    async def settle(
        self, hold: Hold, cost_usd: Decimal | None, usage: Usage | None, *, is_bound: bool = False
    ) -> None:
        await asyncio.sleep(CLOSES_S)
        await super().settle(hold, cost_usd, usage, is_bound=is_bound)


class Hedged:
    """It, or a worker around it, with the layers that matter, its pace known."""

    def __init__(self, price: Price = FREE, slots: int = 8, worker: Worker | None = None) -> None:
        self.inner, self.health, self.ledger = Paced(price), WorkerHealth(), BudgetLedger()
        for _ in range(KNOWN_CALLS):
            self.health.speak(FAST)
        self.limiter = Limited(Watched(worker or self.inner, self.health), slots)
        self.worker = Hedging(self.limiter, self.limiter, self.health)
        for _ in range(40):
            self.worker._budget.earn()  # as 40 calls before would have
        self.member = PoolMember("w", self.worker, price=price, worst_price=price, max_output_tokens=50)

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Reply]:
        async with asyncio.timeout(3), open_call(self.member, CALL, self.ledger) as reply:
            yield reply

    async def ask(self) -> CallResult:
        async with self.open() as reply:
            async for _ in reply:
                pass
        return reply.result

    def is_clean(self) -> bool:
        return (self.inner.n_open, self.limiter.open_calls, self.ledger.holds) == (0, 0, [])


@pytest.mark.parametrize("price", [FREE, PRICE])
async def test_a_late_first_token_is_overtaken_and_both_calls_are_paid_as_the_record_says(price: Price):
    it = Hedged(price)
    it.inner.delays_s = iter([SLOW, FAST])
    result = await it.ask()
    assert result.output == "call 2 said so"
    (lost,) = result.attempts
    assert (lost.outcome, lost.hedge, lost.cost_is_bound) == ("lost_race", False, price == PRICE)
    assert it.ledger.spent_usd == (result.cost_usd or 0) + (lost.cost_usd or 0)
    assert (lost.cost_usd is not None) == (price == PRICE)
    assert it.is_clean()


async def test_a_hedge_that_is_no_sooner_is_closed_and_on_record():
    it = Hedged(PRICE)
    it.inner.delays_s = iter([FAST * 5, SLOW])
    result = await it.ask()
    (lost,) = result.attempts
    assert (result.output, lost.outcome, lost.hedge) == ("call 1 said so", "lost_race", True)
    assert it.ledger.spent_usd == (result.cost_usd or 0) + (lost.cost_usd or 0)
    assert it.is_clean()


@pytest.mark.parametrize("delays_s", [[FAST * 4, WorkerUnavailable], [WorkerUnavailable, FAST]])
async def test_where_one_of_two_fails_the_other_answers(delays_s: list[float | type[WorkerError]]):
    it = Hedged(PRICE)
    it.inner.delays_s = iter(delays_s)
    if delays_s[0] is WorkerUnavailable:  # before anything is late: there is no second one then
        with pytest.raises(WorkerUnavailable):
            await it.ask()
    else:
        result = await it.ask()
        assert [(each.outcome, each.hedge) for each in result.attempts] == [("failed", True)]
        assert it.ledger.spent_usd == result.cost_usd
    assert it.is_clean()


async def test_none_is_made_where_slots_are_in_use_or_a_twentieth_was_hedged():
    it = Hedged(slots=2)
    it.inner.delays_s = repeat(FAST * 3)
    await asyncio.gather(*(it.ask() for _ in range(4)))
    assert it.inner.n_calls == 4, "there was no room"
    it = Hedged(slots=100)
    it.inner.delays_s = cycle([FAST * 3])
    for _ in range(10):
        await it.ask()
    assert 10 < it.inner.n_calls <= 12, "a twentieth of 50 calls"


async def test_none_is_made_at_a_worker_whose_circuit_has_opened_meanwhile():
    it = Hedged()
    it.inner.delays_s = repeat(FAST * 3)
    asking = asyncio.create_task(it.ask())
    await until(lambda: it.inner.n_open)
    for _ in range(FAILURES_BEFORE_REST):
        it.health.fail()
    assert ((await asking).output, it.inner.n_calls) == ("call 1 said so", 1)


@pytest.mark.parametrize("how", ["read", "leave", "raise", "cancel"])
async def test_the_answer_does_not_wait_until_the_other_call_is_closed_and_paid(how: str):
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
    (lost,) = replies[0].result.attempts
    assert lost.outcome == "lost_race"
    assert it.ledger.spent_usd == (replies[0].result.cost_usd or 0) + (lost.cost_usd or 0)
    assert lost.cost_usd
    assert it.is_clean()
    assert asyncio.all_tasks() == before


async def test_a_hedge_that_fails_does_not_hold_back_the_call_that_goes_on():
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
async def test_whoever_leaves_early_leaves_nothing_open(pieces: int):
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
    """Deployments of a worker, each with a pace of its own; the first is always drawn first."""

    def __init__(self, **delays_s: float) -> None:
        self.inner = {name: Paced() for name in delays_s}
        self.health = {name: WorkerHealth() for name in delays_s}
        places: list[Deployment] = []
        for name, delay_s in delays_s.items():
            self.inner[name].delays_s = repeat(delay_s)
            limited = Limited(self.inner[name], 8)
            places.append(Deployment(name, limited, limited, self.health[name], 1e-9 if places else 1e9))
        self.hedged = Hedged(worker=Balancing("w", places))

    @property
    def n_calls(self) -> dict[str, int]:
        return {name: inner.n_calls for name, inner in self.inner.items()}


async def test_a_hedge_goes_to_another_deployment():
    it = Deployed(a=SLOW, b=FAST)
    result = await it.hedged.ask()
    assert (result.deployment, it.n_calls) == ("b", {"a": 1, "b": 1})
    assert [each.outcome for each in result.attempts] == ["lost_race"]


async def test_none_is_made_where_there_is_no_other_deployment_or_none_that_is_free():
    alone = Deployed(a=FAST * 5)
    await alone.hedged.ask()
    assert alone.n_calls == {"a": 1}
    resting = Deployed(a=FAST * 5, b=FAST)
    for _ in range(3):
        resting.health["b"].fail()
    await resting.hedged.ask()
    assert resting.n_calls == {"a": 1, "b": 0}


class Breaking(Paced):
    """A worker that breaks off its own call after a word, as a library may whose cancel scopes leak."""

    async def _deltas(self) -> AsyncGenerator[Delta]:
        yield Delta("It")
        await asyncio.sleep(FAST)
        raise asyncio.CancelledError


async def test_a_stream_that_breaks_itself_off_ends_its_reader_too():
    it = Hedged(PRICE, worker=Breaking())
    with pytest.raises(WorkerUnavailable, match="w broke off its own call"):
        await it.ask()
    assert it.is_clean()


class Routed(ScriptedEngine):
    """An engine of some replicas, the first of which is slow; chosen as `PrefixRouter` does."""

    def __init__(self, *replicas: str) -> None:
        super().__init__(Behaviour(text="Yes."))
        self.replicas, self.asked_at = set(replicas), list[str]()

    async def generate(
        self, call: EngineCall, waiting: Callable[[str], None] | None = None
    ) -> AsyncGenerator[Chunk]:
        places = call.places
        assert places
        if self.replicas:
            chosen = min(self.replicas - places.taken)
            places.take(chosen, lambda: bool(self.replicas - places.taken))
            self.asked_at.append(chosen)
        await asyncio.sleep(FAST * 5 if len(self.calls) == 0 else 0)
        async for chunk in super().generate(call, waiting):
            yield chunk


@pytest.mark.parametrize(
    ("replicas", "asked_at"),
    [(["a", "b"], ["a", "b"]), (["a"], ["a"]), ([], [])],
    ids=["two", "one", "unknown"],
)
async def test_a_hedge_of_an_engine_goes_to_another_replica_or_is_not_made(
    replicas: list[str], asked_at: list[str]
):
    engine = Routed(*replicas)
    await Hedged(worker=VllmWorker("w", "m", engine)).ask()
    assert engine.asked_at == asked_at
    assert engine.asked <= max(1, len(asked_at))
