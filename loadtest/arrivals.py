"""Arrival times of open-loop traffic, and how the load changes over a run.

Arrivals are a Poisson process. A load shape makes its rate vary by thinning (Lewis and Shedler, 1979):
arrivals are drawn at the highest rate, and each is kept with the probability that the shape gives for its
time.
"""

import random
from collections.abc import Callable, Iterator

SHAPES: dict[str, Callable[[float], float]] = {
    "steady": lambda part: 1.0,
    "ramp": lambda part: part,
    "spike": lambda part: 1.0 if 0.4 <= part < 0.6 else 0.2,
    "soak": lambda part: min(1.0, part / 0.05),
}
"""Load shapes. Each maps the elapsed part of the run (0 to 1) to a share of the maximum load (0 to 1).

`ramp` shows where latency degrades, `spike` how fast it recovers, and `soak` whether anything grows.
"""


def arrivals(rate: float, duration_s: float, shape: str, source: random.Random) -> Iterator[float]:
    """Yield the arrival times in seconds since the start. `rate` is the shape's maximum per second."""
    at_s = source.expovariate(rate)
    while at_s < duration_s:
        if source.random() < SHAPES[shape](at_s / duration_s):
            yield at_s
        at_s += source.expovariate(rate)
