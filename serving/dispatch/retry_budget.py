"""How many retries one worker's calls may cause.

A token bucket, as Finagle and gRPC have it (https://grpc.io/docs/guides/retry, "retry throttling"): each
call puts a share of a token in, each retry takes one out. So a worker that is down is asked little more
often than one that is well, however many attempts a call may have.

While several parties call (`serving/witnesses.py`), one of them leaves the last half of the tokens to those that have
taken less.
"""

from serving.witnesses import MOST, Traffic

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
        self._traffic = Traffic()
        self._taken: dict[str, float] = {}
        """By parties that have taken more than they paid for since."""

    def earn(self, party: str = "") -> None:
        """`party` makes a call for the first time."""
        self._tokens = min(self._reserve, self._tokens + self._share)
        self._traffic.note(party)
        if party in self._taken:
            self._taken[party] -= self._share
            if self._taken[party] <= 0:
                del self._taken[party]

    def spend(self, party: str = "") -> bool:
        """Whether `party` may make a call again; it is counted then."""
        taken = self._taken.get(party, 0.0)
        if self._tokens < 1 or (taken + 1 > self._reserve / 2 and self._traffic.has_others(party)):
            return False
        self._tokens -= 1
        self._taken[party] = min(taken + 1, self._reserve)
        if len(self._taken) > MOST:
            del self._taken[next(iter(self._taken))]
        return True

    def refund(self) -> None:
        """What was spent was not needed."""
        self._tokens = min(self._reserve, self._tokens + 1)
