"""A call that is not made, though its turn has come."""

from conductor.errors import WorkerUnavailable


class LeftAlone(WorkerUnavailable):
    """Its worker's circuit opened while it waited, or another would answer at once: that one is asked instead
    (`FailingOver`). That it was not made is the last of its `attempts`.
    """

    retryable = False
    only_this_call = True
    left_for: str = ""
    """The worker that would answer at once."""
    waited_s: float = 0.0
    """In the line that it left."""
