"""Who is let in at one router: a place for each run, and room for the bytes that it holds.

A run keeps both until it is written, also while the store is away.
"""

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from itertools import chain

from conductor.model.priority import Priority
from conductor.run.record import NOBODY, Account, Record
from conductor.run.run import Run
from serving.pool import Pool
from serving.runs.admission import check_places, check_room
from serving.runs.held_bytes import HeldBytes, bytes_of_record
from serving.runs.store import RecordStore


class Places:
    """Those of one router.

    Args:
        running: the runs under way, by id.
        store: has runs that have ended and are not written yet.
        pool: the one that serves now.
    """

    def __init__(
        self, running: Mapping[str, Run], store: Callable[[], RecordStore], pool: Callable[[], Pool]
    ) -> None:
        self._running, self._store, self._pool = running, store, pool
        self._entering = dict[str, Account]()
        """Whose runs have a place and are not under way: a burst that waits for the store is counted too, and what has just
        ended and is handed to the store."""
        self.held = HeldBytes(lambda: store().unwritten_bytes())

    @property
    def _n_taken(self) -> int:
        return len(self._entering) + len(self._running) + self._store().n_unwritten

    def check(self) -> None:
        """See that there is a place for one more run.

        Raises:
            Overloaded: there is none.
        """
        check_places(self._n_taken, self._pool())

    @contextmanager
    def enter(
        self, id: str, account: Account, n_bytes: int, priority: Priority, *, goes_on: bool = False
    ) -> Generator[None]:
        """A place for the run of that id, and room for what it holds, until the end of the block; once it is under way,
        until its end. One that `goes_on` was let in before: its key's share of places is not asked for.

        Raises:
            Overloaded: see `check_room` and `HeldBytes.check`.
        """
        under_way = (run.record.account for run in self._running.values())
        accounts = chain(self._entering.values(), under_way)
        of_places = NOBODY if goes_on else account
        check_room(accounts, self._n_taken, self._pool(), of_places, priority)
        self.held.check(account, n_bytes, priority, self._pool().settings)
        self._entering[id] = of_places
        self.held.put(id, account, n_bytes)
        try:
            yield
        finally:
            if id not in self._running:
                self.leave(id)

    def begin(self, record: Record) -> None:
        """That run is under way."""
        self._entering.pop(record.id, None)
        if not self.held.has(record.id):  # it was taken over: nobody let it in here
            self.held.put(record.id, record.account, bytes_of_record(record))

    def end(self, record: Record) -> None:
        """It has ended, and keeps its place and its bytes until `leave`."""
        self._entering[record.id] = record.account

    def leave(self, id: str) -> None:
        """It was handed to the store, or has never begun."""
        self._entering.pop(id, None)
        self.held.leave(id)
