"""What the proof of hedging takes for a fault."""

from dataclasses import replace

from prove.hedging import Row, faults
from prove.open_loop import Load

WITHOUT = Row("without", Load(30, 10, took_s=[0.1] * 97 + [2.0] * 3), 100, 100)
WITH = Row("with", Load(30, 10, took_s=[0.1] * 97 + [0.3] * 3), 100, 105)
OVERLOAD = Row("overload", Load(60, 10, took_s=[0.5] * 1000, refused=500), 1000, 1000)


def test_not_one_call_may_be_added_under_overload():
    assert faults([WITHOUT, WITH, OVERLOAD]) == []
    assert faults([WITHOUT, WITH, replace(OVERLOAD, calls=1001)]) == ["calls were added under overload"]
