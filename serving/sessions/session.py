"""One run on this replica: what it holds, who reads it, and how long it lives."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Protocol

from conductor.run.record import Record
from conductor.run.run import Run
from conductor.run.task import Task
from conductor.run.team import Team
from serving.accounts.rates import NO_RATES, RateReservation
from serving.pool import Pool
from serving.runs.content import ContentJournal
from serving.runs.rows import Item


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """A run that a request asks for.

    Args:
        id: of the run.
        task: to run.
        team: that runs it.
        headers: of the request, for its trace.
        rate: tokens taken of the caller's rates; the run settles them.
        cached: an earlier run whose answer is given again; None: models are called.
        is_cached: the answer may be given again to equal requests.
        n_beside: other runs that hold the same conversation.
        before_calls: awaited once the run is admitted.
    """

    id: str
    task: Task
    team: Team
    headers: dict[str, str] = field(default_factory=dict[str, str])
    rate: RateReservation = NO_RATES
    cached: Record | None = None
    is_cached: bool = False
    n_beside: int = 0
    before_calls: Callable[[], Awaitable[None]] | None = None


class Watcher(Protocol):
    """Receives the events of a run that this replica executes."""

    def hear(self, items: Sequence[Item]) -> None:
        """Take new events of the run; none: the run is over."""
        ...


@dataclass(slots=True, eq=False)
class Execution:
    """What a run holds while this replica executes it.

    Args:
        run: that is executed.
        pool: whose clients it uses.
        journal: redacts its events on their way to the store.
        rate: settled at its end.
        leases: its slot and its bytes; closed once the store has the run.
    """

    run: Run
    pool: Pool
    journal: ContentJournal
    rate: RateReservation
    leases: ExitStack


class Session:
    """One run on this replica. A session exists while the run is executed, read or watched here, or has tasks.

    Its lifetime: it ends with the block that started it; or, if it `is_kept`, it outlives its client and, if this
    process ends, continues on another replica. A run that waits for tools ends its execution and starts another one,
    here or elsewhere, when the results arrive. A run that another replica takes over is detached.

    Args:
        id: of the run.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        self.execution: Execution | None = None
        self.is_kept = False
        """Whether the run outlives its client."""
        self.tasks = set[asyncio.Task[object]]()
        """Work that outlives the client: the driver of the run, a response without a client, a resumption."""
        self.n_readers = 0
        """Requests that follow the run through the store."""
        self.watchers: list[Watcher] = []
        self.n_users = 0
        """Blocks that use this session; with the last one it is dropped."""

    @property
    def run(self) -> Run:
        """The run that is executed here."""
        assert self.execution is not None, "the run is executed here"
        return self.execution.run

    @property
    def is_owner(self) -> bool:
        """Whether this replica executes the run or is about to."""
        return self.execution is not None or bool(self.tasks)

    def cancel(self) -> None:
        """Cancel the run, if it is executed here."""
        if self.execution is not None:
            self.execution.run.cancel()

    def leave(self) -> None:
        """Stop the run, if it is executed here. Another replica continues it."""
        if self.execution is not None:
            self.execution.run.detach()
            self.execution.run.cancel()
