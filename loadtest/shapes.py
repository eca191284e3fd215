"""How a load changes over a run, as a share of its height: 1 is all users, or the whole rate. Numbers only.

Each shape takes the part of the run that has passed, 0 to 1. Locust's classes are in `locust_shapes.py`; the
open loop thins its arrivals by the same numbers.
"""

from collections.abc import Callable

SHAPES: dict[str, Callable[[float], float]] = {
    "steady": lambda part: 1.0,
    "ramp": lambda part: part,
    "spike": lambda part: 1.0 if 0.4 <= part < 0.6 else 0.2,
    "soak": lambda part: min(1.0, part / 0.05),
}
"""`ramp` shows where latency suffers, `spike` how fast it recovers, `soak` whether anything grows."""
