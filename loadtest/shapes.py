"""How a load changes over a run, as parts of its height: 1 is all users, or the whole rate. Pure numbers.

Locust's classes are in `locust_shapes.py`; the open loop thins its arrivals by the same numbers.
"""

from collections.abc import Callable


def steady(part: float) -> float:
    """All of it, from the first moment."""
    return 1.0


def ramp(part: float) -> float:
    """Up in a straight line, to all of it at the end: where does it begin to hurt?"""
    return part


def spike(part: float) -> float:
    """A fifth, then all of it for a fifth of the run, then a fifth again: how soon is it well again?"""
    return 1.0 if 0.4 <= part < 0.6 else 0.2


def soak(part: float) -> float:
    """Up within a twentieth, held to the end: does anything grow or wear out?"""
    return min(1.0, part / 0.05)


SHAPES: dict[str, Callable[[float], float]] = {"steady": steady, "ramp": ramp, "spike": spike, "soak": soak}
"""Each takes the part of the run that has passed, 0 to 1."""
