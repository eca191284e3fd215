"""Adaptive concurrency: slots learned from a worker that queues calls itself or reports that it is busy."""

import asyncio

import pytest

from conductor.errors import WorkerBusy
from conductor.model.call import Call
from conductor.model.messages import Message
from conductor.model.terms import Terms
from conductor.model.worker import Worker
from serving.dispatch.limiter import AdaptiveLimiter
from serving.dispatch.slots import Slots
from serving.workers.scripted import ScriptedReply, ScriptedWorker
from tests.serving.dispatch.routes import dispatcher, route

CALL = Call((Message.of("user", "hi"),))
LATER_S = 1e12
"""Send time after every cut."""
ENGINE, MOST = 4, 24
"""Concurrent calls of the engine, and maximum slots. The engine queues calls above the first number."""


async def ask(worker: Worker, times: int) -> None:
    for _ in range(times):
        try:
            async with worker.open(CALL) as reply:
                async for _ in reply:
                    pass
        except WorkerBusy:
            pass


def test_an_engine_with_its_own_queue_gets_about_as_many_calls_as_it_runs():
    slots, samples = Slots(MOST), list[int]()
    for sent_s in range(10):
        slots.speak(sent_s, 0.1, is_full=False)
    for _ in range(1000):
        slots.speak(1e12, 0.1 * max(1.0, slots.n / ENGINE), is_full=True)
        samples.append(slots.n)
    assert min(samples[500:]) >= ENGINE
    assert max(samples[500:]) <= MOST * 2 / 3


async def test_all_slots_are_free_after_all_calls():
    engine = dispatcher(route(ScriptedWorker("w", ["x"], delay_s=0.001), slots=ENGINE))
    limiter = AdaptiveLimiter("w", MOST)
    worker = dispatcher(route(engine, limiter=limiter))
    await asyncio.gather(*(ask(worker, 3) for _ in range(MOST + 8)))
    assert (limiter.open_calls, limiter.queued) == (0, 0)


async def test_a_busy_worker_loses_slots_once_for_all_calls_in_progress():
    inner = ScriptedWorker("w", [*[ScriptedReply(error="busy")] * 5, *["x"] * 100], delay_s=0.01)
    limiter = AdaptiveLimiter("w", 10)
    worker = dispatcher(route(inner, limiter=limiter))
    await asyncio.gather(*(ask(worker, 1) for _ in range(5)))
    assert limiter.n_slots == 8
    for _ in range(3):
        await asyncio.gather(*(ask(worker, 1) for _ in range(20)))
    assert limiter.n_slots == 10, "it takes them again, one more at a time"


def test_after_a_short_busy_period_a_worker_soon_regains_its_slots():
    slots = Slots(64)
    for _ in range(20):
        slots.refuse(LATER_S)
    assert slots.n == 1
    for _ in range(64):
        slots.speak(LATER_S, 0.1, is_full=True)
    assert slots.n == 64


def test_slots_grow_slowly_if_the_worker_is_busy_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("serving.dispatch.slots.LOWER_EVERY_S", 0.0)
    slots, refused = Slots(64), 0
    for _ in range(5000):
        if slots.n > 32:
            refused += 1
            slots.refuse(LATER_S)
        else:
            slots.speak(LATER_S, 0.1, is_full=True)
    assert 24 <= slots.n <= 33
    assert refused < 50


def test_slots_recover_if_fewer_of_them_do_not_improve_first_tokens():
    slots = Slots(40)
    for sent_s in range(10):
        slots.speak(sent_s, 0.2, is_full=False)
    lowest, at_s = 40, 1e12  # after every cut
    for _ in range(400):
        slots.speak(at_s, 2.0, is_full=True)
        lowest = min(lowest, slots.n)
    assert (lowest, slots.n) == (32, 40)


def quiet(most: int) -> Slots:
    """Return slots that have seen first tokens after 0.1 s."""
    slots = Slots(most)
    for sent_s in range(10):
        slots.speak(sent_s, 0.1, is_full=False, party="a")
    return slots


def send_shorter_and_shorter(slots: Slots, *parties: str, beside: dict[str, float] | None = None) -> int:
    """Send prompts that are shorter after each cut, and return the lowest number of slots.

    Args:
        slots: slots that learn from the calls.
        parties: senders, in turn.
        beside: seconds to the first token of other parties, each of which sends every tenth call.
    """
    first_token_s, lowest = 8.0, slots.n
    for _ in range(100):
        before = slots.n
        for n in range(max(10, before)):
            for party, other_s in (beside or {}).items() if n % 10 == 0 else ():
                slots.speak(LATER_S, other_s, is_full=True, party=party)
            slots.speak(LATER_S, first_token_s, is_full=True, party=parties[n % len(parties)])
        lowest = min(lowest, slots.n)
        if slots.n < before:
            first_token_s = max(0.21, 0.89 * first_token_s)
    return lowest


def test_one_team_alone_keeps_a_quarter_of_the_slots_and_others_regain_all():
    slots = quiet(64)
    assert send_shorter_and_shorter(slots, "a") == 16
    assert slots.n == 16
    for _ in range(48):
        slots.speak(LATER_S, 0.1, is_full=True, party="b")
    assert slots.n == 64


@pytest.mark.parametrize(
    ("others_s", "lowest"), [({"b": 0.1}, 64), ({"b": 1.0}, 51), ({"b": 0.1, "c": 1.0}, 51)]
)
def test_one_slow_team_reduces_no_slots_for_others(others_s: dict[str, float], lowest: int):
    slots = quiet(64)
    assert send_shorter_and_shorter(slots, "a", beside=others_s) == lowest, "a cut that did not help others"
    assert slots.n >= 51


@pytest.mark.parametrize("parties", [("",), ("a", "b")], ids=["keys are off", "two"])
def test_slots_are_reduced_if_several_or_unknown_teams_are_slow(
    parties: tuple[str, ...],
):
    assert send_shorter_and_shorter(quiet(64), *parties) < 8


@pytest.mark.parametrize("n", [1, 2, 1000])
def test_an_engine_with_its_own_queue_gets_fewer_calls_from_any_team(n: int):
    slots, samples = quiet(MOST), list[int]()
    for call in range(1000):
        slots.speak(LATER_S, 0.1 * max(1.0, slots.n / ENGINE), is_full=True, party=f"party {call % n}")
        samples.append(slots.n)
    assert min(samples[500:]) >= ENGINE
    assert max(samples[500:]) <= MOST * 2 / 3


async def test_first_token_times_are_recorded_per_team():
    limiter = AdaptiveLimiter("w", 1)
    worker = dispatcher(route(ScriptedWorker("w", ["x"]), limiter=limiter))
    for key, team in (("a", "t"), ("a2", "t"), ("b", "")):
        async with worker.open(Call(CALL.messages, terms=Terms(payer=key, team=team))):
            pass
    assert {party: len(times) for party, times in limiter.learned._first_token_s.items()} == {"t": 2, "b": 1}
