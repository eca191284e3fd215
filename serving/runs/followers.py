"""Who follows a run here that an earlier request began. Each reads the store for itself, so there are only so many."""

from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager

from conductor.errors import Overloaded
from conductor.run.record import Account
from conductor.run.run import Run
from serving.pool import Pool
from serving.runs.held_bytes import HeldBytes, bytes_of_record
from serving.shares import Room

MOST_OF_ONE = 16
"""Of one run at one router. Nobody reads one answer so often at once."""
PART = 4
"""There may be a quarter as many of them as runs."""


class Followers:
    """Those of one router.

    Args:
        held: where it is counted what they hold of their runs.
        pool: the one that serves now.
    """

    def __init__(self, held: HeldBytes, pool: Callable[[], Pool]) -> None:
        self._held, self._pool = held, pool
        self._following = dict[object, str]()
        self._room = Room(
            "limits.max_running",
            lambda: max(MOST_OF_ONE, pool().settings.limits.max_running // PART),
            "requests that wait for a run of an earlier request",
        )

    @contextmanager
    def enter(self, id: str, account: Account) -> Generator[None]:
        """One more who waits for the run of that id, or is told of it, until the end of the block. There are a
        quarter as many in all as there may be runs, and keys share them.

        Raises:
            Overloaded: there are too many.
        """
        if sum(each == id for each in self._following.values()) >= MOST_OF_ONE:
            raise Overloaded("Too many requests here wait for the answer of this one run. Try again soon.")
        follower = object()
        with self._room.holding(account):
            self._following[follower] = id
            try:
                yield
            finally:
                del self._following[follower]

    @asynccontextmanager
    async def follow(
        self, id: str, account: Account, opened: AbstractAsyncContextManager[Run]
    ) -> AsyncGenerator[Run]:
        """`opened`, which reads the run of that id for one more reader.

        Raises:
            Overloaded: see `enter` and `HeldBytes.check`.
        """
        with self.enter(id, account):
            async with opened as run:
                n_bytes = bytes_of_record(run.record)
                with self._held.holding(account, n_bytes, "interactive", self._pool().settings):
                    yield run
