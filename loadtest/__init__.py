"""Load test: simulated users of a running Podium. It uses HTTP only and knows nothing of how Podium is
built.
"""

import math
from collections.abc import Iterable


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the nearest-rank percentile, or NaN if there are no values."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[max(0, math.ceil(round(percent * len(ordered) / 100, 9)) - 1)]
