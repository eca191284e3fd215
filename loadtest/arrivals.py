"""Arrival times of open-loop traffic, and load shapes over a run. Numbers only.

Arrivals are a Poisson process. A shape makes it inhomogeneous by thinning (Lewis and Shedler, 1979): arrivals
are drawn at the highest rate, and each is kept with the probability of the shape at its time.
"""

import random
from collections.abc import Callable, Iterator

SHAPES: dict[str, Callable[[float], float]] = {
    "steady": lambda part: 1.0,
    "ramp": lambda part: part,
    "spike": lambda part: 1.0 if 0.4 <= part < 0.6 else 0.2,
    "soak": lambda part: min(1.0, part / 0.05),
}
"""Share of all users, or of the whole rate, as a function of the elapsed part of the run, 0 to 1.

`ramp` shows where latency degrades, `spike` how fast it recovers, `soak` whether anything grows.
"""


def arrivals(rate: float, duration_s: float, shape: str, source: random.Random) -> Iterator[float]:
    """Yield arrival times in seconds since the start of the run, ascending.

    Args:
        rate: requests per second at the shape's maximum.
        duration_s: end of the arrivals.
        shape: a name of `SHAPES`.
        source: random generator; the same seed gives the same times.
    """
    at_s = source.expovariate(rate)
    while at_s < duration_s:
        if source.random() < SHAPES[shape](at_s / duration_s):
            yield at_s
        at_s += source.expovariate(rate)
