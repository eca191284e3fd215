"""What the proof of hedging takes for a fault."""

from dataclasses import replace

from prove.hedging import Row, faults
from prove.open_loop import Load

WITHOUT = Row("without", Load(30, 10, took_s=[0.1] * 97 + [2.0] * 3), 100)
WITH = Row("with", Load(30, 10, took_s=[0.1] * 97 + [0.3] * 3), 105)
OVERLOAD = Row("overload", Load(60, 10, took_s=[0.5] * 1000, refused=500), 1000)
DEAD = Row("worker down", Load(30, 10, took_s=[0.1] * 1000), 10)


def test_not_one_call_may_be_added_under_overload():
    assert faults([WITHOUT, WITH, OVERLOAD], DEAD) == []
    rows = [WITHOUT, WITH, replace(OVERLOAD, calls=1001)]
    assert faults(rows, DEAD) == ["calls were added under overload"]


def test_a_worker_that_is_down_may_be_asked_ten_times():
    rows = [WITHOUT, WITH, OVERLOAD]
    assert faults(rows, replace(DEAD, calls=11)) == ["a worker that is down was asked too often"]
