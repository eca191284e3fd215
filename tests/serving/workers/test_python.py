from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from decimal import Decimal
from typing import Any

import pytest

from conductor.model.call import Call, Sampling
from conductor.model.deltas import open_reply
from conductor.model.messages import Message
from conductor.model.reply import Delta, FinishReason, Reply
from conductor.model.usage import Price, Usage
from conductor.run.call_holds import open_call
from conductor.run.ledger import BudgetLedger
from serving.pool import build_pool
from serving.settings.settings import SettingsError, parse

HERE = "tests.serving.workers.test_python"


class Parrot:
    """Custom worker that repeats the user's text `times` times."""

    def __init__(self, name: str, price: Price | None, times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times is {times}; at least 1 is needed")
        self.name, self._price, self._times = name, price, times

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "parrot", self._deltas(call), self._price)

    async def _deltas(self, call: Call) -> AsyncGenerator[Delta]:
        for _ in range(self._times):
            yield Delta(call.messages[-1].text + " ")
        yield Delta(finish=FinishReason.STOP)


class ConfigurableWorker:
    """Custom worker with configurable usage, cost and finish."""

    def __init__(self, name: str, price: Price | None, words: int = 2, **last: Any) -> None:
        self.name, self._price, self._words, self._last = name, price, words, last

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "liar", self._deltas(), self._price)

    async def _deltas(self) -> AsyncGenerator[Delta]:
        for _ in range(self._words):
            yield Delta("word ")
        usage = self._last.get("usage")
        cost_usd = Decimal(self._last["cost_usd"]) if "cost_usd" in self._last else None
        yield Delta(finish=FinishReason.STOP, usage=Usage(*usage) if usage else None, cost_usd=cost_usd)


def no_worker(name: str, price: Price | None) -> str:
    return name


def pool(**worker: Any):
    return build_pool(parse({"workers": [{"name": "polly", "kind": "python"} | worker]}), {}, engines={})


async def test_a_configured_class_is_created_with_its_options():
    member = pool(factory=f"{HERE}:Parrot", options={"times": 2}).members["polly"]
    async with member.worker.open(Call((Message.of("user", "crackers"),))) as reply:
        text = "".join([delta.text async for delta in reply])
    assert text == "crackers crackers "


def test_its_price_is_unknown_unless_it_is_set():
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    assert pool(factory=f"{HERE}:Parrot").members["polly"].price is None
    assert pool(factory=f"{HERE}:Parrot", price=price).members["polly"].price == Price(**price)


@pytest.mark.parametrize(
    ("worker", "message"),
    [
        ({"factory": "no.such:Thing"}, "No module named 'no'"),
        ({"factory": f"{HERE}:Missing"}, "has no function or class 'Missing'"),
        ({"factory": f"{HERE}:Parrot", "options": {"times": 0}}, "times is 0; at least 1 is needed"),
        ({"factory": f"{HERE}:Parrot", "options": {"loud": True}}, "unexpected keyword argument 'loud'"),
        ({"factory": f"{HERE}:no_worker"}, "must return a worker, but the str that it returns"),
        ({"factory": "Parrot"}, "workers[0].factory"),
    ],
)
def test_a_worker_that_cannot_be_created_is_an_error_with_its_name(worker: dict[str, Any], message: str):
    with pytest.raises(SettingsError) as caught:
        pool(**worker)
    assert message in str(caught.value)
    assert "polly" in str(caught.value) or "workers[0]" in str(caught.value)


PRICE = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 10}


async def call_and_bill(**options: Any) -> tuple[Reply, BudgetLedger]:
    """Call a custom worker with at most 100 output tokens."""
    member = pool(factory=f"{HERE}:ConfigurableWorker", price=PRICE, options=options).members["polly"]
    call, ledger = Call((Message.of("user", "?"),), Sampling(max_output_tokens=100)), BudgetLedger()
    async with open_call(member, call, ledger) as reply:
        async for _ in reply:
            pass
    return reply, ledger


@pytest.mark.parametrize("usage", [(-5, 7), (5, 10**30), (5, 7, 6), ("many", 1), (1.5, 2)])
async def test_impossible_usage_is_billed_at_its_bound(usage: tuple[Any, ...]):
    reply, ledger = await call_and_bill(usage=usage)
    bound = input_and_output(reply)
    assert (reply.usage, reply.result.cost_is_bound, len(reply.notes)) == (None, True, 1)
    assert reply.result.cost_usd == ledger.spent_usd == Price(Decimal(1), Decimal(10)).of(bound)


def input_and_output(reply: Reply) -> Usage:
    assert reply.bound is not None
    assert reply.bound.output_tokens == 100
    return reply.bound


@pytest.mark.parametrize("cost_usd", ["-1", "NaN", "Infinity", "1e30"])
async def test_an_impossible_cost_is_ignored(cost_usd: str):
    reply, ledger = await call_and_bill(usage=(5, 7), cost_usd=cost_usd)
    assert reply.result.cost_usd == ledger.spent_usd == Price(Decimal(1), Decimal(10)).of(Usage(5, 7))
    assert len(reply.notes) == 1


async def test_a_worker_that_does_not_stop_is_cut_at_its_hold():
    reply, ledger = await call_and_bill(words=10_000)
    assert (len(reply.texts), reply.finish) == (101, FinishReason.LENGTH)
    assert reply.result.cost_usd == ledger.spent_usd
    assert reply.result.cost_is_bound
