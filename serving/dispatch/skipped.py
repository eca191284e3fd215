"""A call that is not sent, although it has a slot."""

from conductor.errors import WorkerUnavailable


class Skipped(WorkerUnavailable):
    """The worker's circuit opened while the call waited, or another worker would answer at once: that one is tried
    instead. The last of `attempts` says so.
    """

    retryable = False
    only_this_call = True
    skipped_for: str = ""
    """The worker that would answer at once."""
    waited_s: float = 0.0
    """Seconds in the queue that the call left."""
