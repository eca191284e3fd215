"""When requests arrive if nobody waits for anybody: a Poisson process. Numbers only.

A shape makes it an inhomogeneous one by thinning (Lewis and Shedler, 1979): arrivals are drawn at the highest
rate, and each is kept with the probability that the shape has at its time.
"""

import random
from collections.abc import Iterator

from loadtest.shapes import SHAPES


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
