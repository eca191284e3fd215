"""How many calls at once: found out from a worker that has a line of its own, or says that it is busy."""

import asyncio

import pytest

from conductor.errors import WorkerBusy
from conductor.model.call import Call
from conductor.model.messages import Message
from serving.layers import adaptive
from serving.layers.adaptive import Adaptive, Slots
from serving.layers.limited import Limited
from serving.workers.scripted import ScriptedReply, ScriptedWorker

CALL = Call((Message.of("user", "hi"),))
LATER_S = 1e12
"""A call that was sent after every cut."""
ENGINE, MOST = 4, 24
"""Calls that the engine works on at once, and that it is given at most; the others wait in it."""


async def ask(worker: Limited, times: int) -> None:
    for _ in range(times):
        try:
            async with worker.open(CALL) as reply:
                async for _ in reply:
                    pass
        except WorkerBusy:
            pass


def test_an_engine_with_a_line_of_its_own_is_given_about_what_it_works_on():
    slots, seen = Slots(MOST), list[int]()
    for sent_s in range(10):
        slots.speak(sent_s, 0.1, is_full=False)
    for _ in range(1000):  # sent after every cut
        slots.speak(1e12, 0.1 * max(1.0, slots.n / ENGINE), is_full=True)
        seen.append(slots.n)
    assert min(seen[500:]) >= ENGINE
    assert max(seen[500:]) <= MOST * 2 / 3


async def test_all_slots_are_free_after_all_calls():
    worker = Adaptive(Limited(ScriptedWorker("w", ["x"], delay_s=0.001), ENGINE), MOST)
    await asyncio.gather(*(ask(worker, 3) for _ in range(MOST + 8)))
    assert (worker.open_calls, worker.queued) == (0, 0)


async def test_a_worker_that_says_it_is_busy_is_given_fewer_once_for_all_calls_under_way():
    inner = ScriptedWorker("w", [*[ScriptedReply(error="busy")] * 5, *["x"] * 100], delay_s=0.01)
    worker = Adaptive(inner, 10)
    await asyncio.gather(*(ask(worker, 1) for _ in range(5)))
    assert worker.n_slots == 8
    for _ in range(3):
        await asyncio.gather(*(ask(worker, 1) for _ in range(20)))
    assert worker.n_slots == 10, "it takes them again, one more at a time"


def test_after_a_short_time_in_which_it_was_busy_a_worker_soon_takes_what_it_took_before():
    slots = Slots(64)
    for _ in range(20):
        slots.refuse(LATER_S)
    assert slots.n == 1
    for _ in range(64):
        slots.speak(LATER_S, 0.1, is_full=True)
    assert slots.n == 64


def test_where_it_is_busy_again_on_the_way_there_it_grows_slowly(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(adaptive, "LOWER_EVERY_S", 0.0)
    slots, refused = Slots(64), 0
    for _ in range(5000):
        if slots.n > 32:
            refused += 1
            slots.refuse(LATER_S)
        else:
            slots.speak(LATER_S, 0.1, is_full=True)
    assert 24 <= slots.n <= 33
    assert refused < 50


def test_first_tokens_that_fewer_calls_make_no_sooner_cost_no_slots():
    slots = Slots(40)
    for sent_s in range(10):
        slots.speak(sent_s, 0.2, is_full=False)
    lowest, at_s = 40, 1e12  # after every cut
    for _ in range(400):
        slots.speak(at_s, 2.0, is_full=True)
        lowest = min(lowest, slots.n)
    assert (lowest, slots.n) == (32, 40)
