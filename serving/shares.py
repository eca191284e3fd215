"""How keys and teams share what there is of something, so that none of them takes all of it.

One rule for the runs of a router and for the slots of a worker, with what each key has counted where it is given; and
`Room` for everything else that a request may hold, and `in_slices` for the event loop.
"""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Generator, Iterable
from contextlib import contextmanager
from typing import TypeVar

from conductor.errors import Overloaded
from conductor.run.record import Account

KEPT = 0.1
"""Of all that there is: for keys that have less than their share."""
OF_A_KEY, OF_A_TEAM = (4, "a quarter"), (2, "half")
"""What one key and one team may have of a `Room`."""
RETRY_AFTER_S = 2.0
SLICE_S = 0.002
"""Of work on a long list, before everything else has its turn."""
Item = TypeVar("Item")


def share(had: Counter[str]) -> float:
    """What the keys that have any have on average. A key that has as much has its share."""
    return had.total() / len(had) if had else 0.0


class Room:
    """So much of something at one router: answers under way, or bytes. An account that has none of it may take any amount
    that is left, and any amount at all while nobody has any.

    Args:
        setting: that says how much there is, for the error.
        most: how much there is now.
        what: is counted, for the error.
    """

    def __init__(self, setting: str, most: Callable[[], int], what: str) -> None:
        self._setting, self._most, self._what = setting, most, what
        self._of_keys, self._of_teams = Counter[str](), Counter[str]()
        self.taken = 0

    def take(self, account: Account, n: int = 1) -> None:
        """Take `n` of it; `leave` gives it back. An account without a key has no share: no server with keys knows one.

        Raises:
            Overloaded: there is no more, or the key or its team has its share.
        """
        if not n:
            return
        most = self._most()
        if self.taken and self.taken + n > most:
            raise self._error(f"This server has as many {self._what} as it takes at once")
        whose = _owner(account)
        for name, had, (part, word) in (
            ("key", self._of_keys[account.key_id] if account.key_id else 0, OF_A_KEY),
            ("team", self._of_teams[whose] if account.team_id else 0, OF_A_TEAM),
        ):
            if had and had + n > most // part:
                raise self._error(
                    f"This {name} has as many {self._what} as one may have at once, {word} of all"
                )
        had = self._of_teams[whose]
        if whose and had and had >= share(self._of_teams) and self.taken + n > (1 - KEPT) * most:
            raise self._error(f"This key or its team has its share of the {self._what} of this server")
        self._add(account, n)

    def leave(self, account: Account, n: int = 1) -> None:
        """Give `n` back that `take` took."""
        self._add(account, -n)

    @contextmanager
    def holding(self, account: Account, n: int = 1) -> Generator[None]:
        """Take `n` until the end of the block.

        Raises:
            Overloaded: see `take`.
        """
        self.take(account, n)
        try:
            yield
        finally:
            self.leave(account, n)

    def _add(self, account: Account, n: int) -> None:
        self.taken += n
        for had, of in ((self._of_keys, account.key_id), (self._of_teams, _owner(account))):
            had[of] += n
            if not had[of]:
                del had[of]

    def _error(self, why: str) -> Overloaded:
        message = f"{why} ({self._setting}). Wait until some have ended, then try again."
        return Overloaded(message, param=self._setting, retry_after_s=RETRY_AFTER_S)


class Share:
    """What one account holds of a room; it may become more or less.

    Args:
        room: of which it is a part.
        account: that holds it.
    """

    def __init__(self, room: Room, account: Account) -> None:
        self._room, self._account, self.n = room, account, 0

    def resize(self, n: int) -> None:
        """Hold `n` in place of those before.

        Raises:
            Overloaded: there is no room for them. Those before stay.
        """
        if n > self.n:
            self._room.take(self._account, n - self.n)
        else:
            self._room.leave(self._account, self.n - n)
        self.n = n


def _owner(account: Account) -> str:
    """Who shares: the team, or a key without one. Empty where there are no keys."""
    return account.team_id or account.key_id


async def in_slices(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Each of `items`; after `SLICE_S` of work on them, everything else that is ready has its turn."""
    began_s = time.thread_time()
    for item in items:
        yield item
        if time.thread_time() - began_s > SLICE_S:
            await asyncio.sleep(0)
            began_s = time.thread_time()
