"""The last part of what keys share: it is kept for those that have less of it than the others.

One rule for the runs of a router and for the slots of a worker. What each key has is counted where it is given.
"""

from collections import Counter

KEPT = 0.1
"""Of all that there is: for keys that have less than their share."""


def share(had: Counter[str]) -> float:
    """What the keys that have any have on average. A key that has as much has its share."""
    return had.total() / len(had) if had else 0.0
