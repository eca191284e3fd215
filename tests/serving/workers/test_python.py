from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from conductor.model.messages import Message
from conductor.model.usage import Price
from conductor.model.worker import Call, Delta, FinishReason, Reply, open_reply
from serving.pool import build_pool
from serving.settings.settings import SettingsError, parse

HERE = "tests.serving.workers.test_python"


class Parrot:
    """A worker of one's own: says the user's words so many times."""

    def __init__(self, name: str, price: Price | None, times: int = 1) -> None:
        if times < 1:
            raise ValueError(f"times is {times}; at least 1 is needed")
        self.name, self._price, self._times = name, price, times

    def open(self, call: Call) -> AbstractAsyncContextManager[Reply]:
        return open_reply(self.name, "parrot", self._said(call), self._price)

    async def _said(self, call: Call) -> AsyncGenerator[Delta]:
        for _ in range(self._times):
            yield Delta(call.messages[-1].text + " ")
        yield Delta(finish=FinishReason.STOP)


def no_worker(name: str, price: Price | None) -> str:
    return name


def pool(**worker: Any):
    return build_pool(parse({"workers": [{"name": "polly", "kind": "python"} | worker]}), {}, engines={})


async def test_a_class_named_in_the_settings_is_a_worker_with_its_options():
    member = pool(factory=f"{HERE}:Parrot", options={"times": 2}).members["polly"]
    async with member.worker.open(Call((Message.of("user", "crackers"),))) as reply:
        text = "".join([delta.text async for delta in reply])
    assert text == "crackers crackers "


def test_its_price_is_unknown_unless_it_is_set():
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    assert pool(factory=f"{HERE}:Parrot").members["polly"].price is None
    assert pool(factory=f"{HERE}:Parrot", price=price).members["polly"].price == Price(**price)


@pytest.mark.parametrize(
    ("worker", "told"),
    [
        ({"factory": "no.such:Thing"}, "No module named 'no'"),
        ({"factory": f"{HERE}:Missing"}, "has no attribute 'Missing'"),
        ({"factory": f"{HERE}:Parrot", "options": {"times": 0}}, "times is 0; at least 1 is needed"),
        ({"factory": f"{HERE}:Parrot", "options": {"loud": True}}, "unexpected keyword argument 'loud'"),
        ({"factory": f"{HERE}:no_worker"}, "gives str, which has no `open`"),
        ({"factory": "Parrot"}, "workers[0].factory"),
    ],
)
def test_what_cannot_be_made_is_told_with_the_workers_name(worker: dict[str, Any], told: str):
    with pytest.raises(SettingsError) as caught:
        pool(**worker)
    assert told in str(caught.value)
    assert "polly" in str(caught.value) or "workers[0]" in str(caught.value)
