"""How many retries one worker's calls may cause.

A token bucket, as Finagle and gRPC have it (https://grpc.io/docs/guides/retry, "retry throttling"): each
call puts a share of a token in, each retry takes one out. So a worker that is down is asked little more
often than one that is well, however many attempts a call may have.
"""

RESERVE = 10.0
"""Tokens at the start, and at most: a few calls may be retried whatever the share is."""


class RetryBudget:
    """One worker's, in one router replica.

    Args:
        share: of a retry that each call pays for.
        start: how many are there at the beginning.
    """

    def __init__(self, share: float, start: float = RESERVE) -> None:
        self._share, self._tokens = share, start

    def earn(self) -> None:
        """A call is made for the first time."""
        self._tokens = min(RESERVE, self._tokens + self._share)

    def spend(self) -> bool:
        """Whether a call may be made again; it is counted then."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True
