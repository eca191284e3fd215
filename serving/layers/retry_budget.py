"""How many retries one worker's calls may cause.

A token bucket, as Finagle and gRPC have it (https://grpc.io/docs/guides/retry, "retry throttling"): each
call puts a share of a token in, each retry takes one out. So a worker that is down is asked little more
often than one that is well, however many attempts a call may have.
"""

RESERVE = 10.0
"""Tokens at the start, and at most: a few calls may be retried whatever the share is. More where one machine that is
lost breaks more calls at once, and the others have room for them."""


class RetryBudget:
    """One worker's, in one router replica.

    Args:
        share: of a retry that each call pays for.
        start: how many are there at the beginning; None: the reserve.
        reserve: the most that there are, and how many at the beginning where `start` does not say.
    """

    def __init__(self, share: float, start: float | None = None, reserve: float = RESERVE) -> None:
        self._share, self._reserve = share, reserve
        self._tokens = reserve if start is None else start

    def earn(self) -> None:
        """A call is made for the first time."""
        self._tokens = min(self._reserve, self._tokens + self._share)

    def spend(self) -> bool:
        """Whether a call may be made again; it is counted then."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def refund(self) -> None:
        """What was spent was not needed."""
        self._tokens = min(self._reserve, self._tokens + 1)
