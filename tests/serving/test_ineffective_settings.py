"""Settings without effect: each is reported with its field and a remedy."""

import logging
from typing import Any

import pytest

from conductor.model.call import Call
from conductor.model.messages import Message
from serving.dispatch.limiter import Limiter
from serving.pool import build_pool
from serving.settings.settings import parse
from serving.settings.without_effect import LEAST_SLOTS_TO_HEDGE, without_effect

Json = dict[str, Any]


def scripted(name: str, **more: Any) -> Json:
    return {"name": name, "kind": "scripted"} | more


def messages_for(*workers: Json, **more: Any) -> list[str]:
    return [f"{each.message} {each.remedy}" for each in without_effect(parse({"workers": workers} | more))]


def test_a_hedge_that_can_never_be_sent_is_reported_with_its_worker():
    (few,) = messages_for(scripted("a"), scripted("b", hedge=True, max_concurrency=1))
    assert few.startswith("`hedge: true` of worker b (workers[1].hedge) has no effect"), few
    assert "Set `max_concurrency` of b to at least 4" in few
    places = {"deployments": [{"name": "eu"}, {"name": "us"}]}
    api: Json = {"name": "a", "kind": "openai", "model": "x", "hedge": True}
    assert "(workers[0].hedge)" in messages_for(api | places | {"max_concurrency": 3})[0], (
        "whose slots all deployments share"
    )
    (one,) = messages_for(api | {"deployments": places["deployments"][:1]})
    assert "another deployment and the worker has only one" in one
    assert messages_for(api, scripted("b", hedge=True, max_concurrency=4)) == [], (
        "many servers may be behind one address"
    )
    assert (
        messages_for(
            api | places, scripted("b", max_concurrency=1), scripted("c", max_concurrency=1, hedge=False)
        )
        == []
    )


@pytest.mark.parametrize("n_slots", range(1, 7))
async def test_hedging_needs_a_minimum_number_of_slots(n_slots: int):
    slots = Limiter("a", n_slots)
    async with slots.slot(Call((Message.of("user", "Hi"),))):
        assert slots.has_idle == (n_slots >= LEAST_SLOTS_TO_HEDGE)


def test_skipping_the_answering_step_is_reported_with_its_place():
    skipped, plain = {"worker": "a", "on_failure": "skip"}, {"worker": "a", "access": "all"}
    (line,) = messages_for(scripted("a"), workflows={"fine": [skipped, plain], "duo": [plain, skipped]})
    assert "workflows.duo[1].on_failure" in line, line
    assert "Add `fallbacks` to the worker a, or remove `on_failure` from the step." in line, line


def test_a_baseline_without_a_price_is_reported_with_the_remedy():
    (line,) = messages_for(scripted("a"), baseline="gpt-5")
    assert line.startswith("`baseline` has no effect, because the price of gpt-5 is unknown. Set `baseline: {model: gpt-5, price: {"), line  # fmt: skip
    price = {"input_usd_per_mtok": 1, "output_usd_per_mtok": 2}
    assert messages_for(scripted("a"), baseline={"model": "gpt-5", "price": price}) == []
    assert messages_for(scripted("a", price=price), baseline="a") == []
    unpriced = {"name": "b", "kind": "openai", "model": "x"}
    assert len(messages_for(scripted("a"), unpriced, baseline="b")) == 1


def test_settings_without_effect_are_logged_when_a_pool_is_built(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.WARNING, "podium")
    build_pool(parse({"workers": [scripted("a", hedge=True, max_concurrency=1)]}), {}, engines={})
    (record,) = [each for each in caplog.records if each.name == "podium"]
    assert record.levelno == logging.WARNING
    assert "workers[0].hedge" in record.getMessage()
