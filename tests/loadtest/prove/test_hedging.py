"""Faults that the proof of hedging reports."""

from collections import Counter
from dataclasses import replace

from aiohttp import ClientSession

from loadtest.prove.hedging import HedgingRow, faults
from loadtest.rig.fake_openai import FakeOpenAI, slow_tail
from loadtest.rig.open_loop import OpenLoopResult

WITHOUT = HedgingRow("without", OpenLoopResult(30, 10, took_s=[0.1] * 97 + [2.0] * 3), 100, 100)
WITH = HedgingRow("with", OpenLoopResult(30, 10, took_s=[0.1] * 97 + [0.3] * 3), 105, 100)
OVERLOAD = HedgingRow("overload", OpenLoopResult(60, 10, took_s=[0.5] * 1000, refused=500), 1000, 1000)
DEAD = HedgingRow("worker down", OpenLoopResult(30, 10, took_s=[0.1] * 1000), 10, 10)


def test_no_call_may_be_added_under_overload():
    assert faults([WITHOUT, WITH, OVERLOAD], DEAD) == []
    rows = [WITHOUT, WITH, replace(OVERLOAD, calls=1001)]
    assert faults(rows, DEAD) == ["hedges were sent under overload"]


def test_a_worker_that_is_down_may_be_called_ten_times():
    rows = [WITHOUT, WITH, OVERLOAD]
    assert faults(rows, replace(DEAD, calls=11)) == ["a worker that is down got too many calls"]


def test_rejected_requests_do_not_hide_hedges():
    load = OpenLoopResult(60, 10, took_s=[0.5] * 900, refused=500, others=Counter(line_too_long=100))
    assert faults([WITHOUT, WITH, HedgingRow("overload", load, 900, 900)], DEAD) == []
    hedged = HedgingRow("overload", load, 901, 900)
    assert (hedged.extra_calls, faults([WITHOUT, WITH, hedged], DEAD)) == (
        1,
        ["hedges were sent under overload"],
    )


async def test_the_calls_of_one_request_are_distinguished_from_others():
    upstream = FakeOpenAI(slow_tail(0, 0, 0))
    async with upstream.running() as url, ClientSession() as session:
        for prompt in ("Why 1?", "Why 2?", "Why 2?"):
            body = {"messages": [{"role": "user", "content": prompt}]}
            async with session.post(f"{url}/chat/completions", json=body) as answer:
                assert answer.status == 200
    assert Counter(call.prompt for call in upstream.calls) == {"Why 1?": 1, "Why 2?": 2}
