"""When requests arrive if nobody waits for anybody, and how a load changes over a run. Numbers only.

Arrivals are a Poisson process. A shape makes it an inhomogeneous one by thinning (Lewis and Shedler, 1979):
arrivals are drawn at the highest rate, and each is kept with the probability that the shape has at its
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
"""The share of all users, or of the whole rate, by the part of the run that has passed, 0 to 1.

`ramp` shows where latency suffers, `spike` how fast it recovers, `soak` whether anything grows.
"""


def arrivals(rate: float, duration_s: float, shape: str, source: random.Random) -> Iterator[float]:
    """Arrival times in seconds since the run began, ascending.

    Args:
        rate: requests per second at the shape's height.
        duration_s: none comes later.
        shape: a name of `SHAPES`.
        source: of the draws; the same seed gives the same times.
    """
    at_s = source.expovariate(rate)
    while at_s < duration_s:
        if source.random() < SHAPES[shape](at_s / duration_s):
            yield at_s
        at_s += source.expovariate(rate)
