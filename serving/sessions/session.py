"""One run on this replica: its resources, its readers and its lifetime."""

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
from serving.store.content import ContentJournal
from serving.store.rows import Item


@dataclass(frozen=True, slots=True, eq=False)
class RunSpec:
    """A requested run.

    Args:
        id: of the run.
        task: to run.
        team: that runs it.
        headers: of the request, for its trace.
        rate: reservation in the caller's rates; the run settles it.
        cached: earlier run whose answer is returned; None to call models.
        is_cached: whether the answer may be returned to equal requests.
        n_beside: number of other runs that share the conversation in memory.
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
        """Handle new events of the run. An empty sequence means that the run is over."""
        ...


@dataclass(slots=True, eq=False)
class Execution:
    """Resources of a run while this replica executes it.

    Args:
        run: that is executed.
        pool: whose clients it uses.
        journal: redacts its events on their way to the store.
        rate: settled at its end.
        leases: its slot and its memory; closed once the run is stored.
    """

    run: Run
    pool: Pool
    journal: ContentJournal
    rate: RateReservation
    leases: ExitStack


class Session:
    """One run on this replica. A session exists while the run is executed, read or watched here, or has
    tasks.

    A run ends with the block that started it. A run that `is_kept` outlives its client and continues on
    another replica if this process ends. A run that waits for tools ends its execution. The results start
    another one, here or elsewhere. A run that another replica takes over is detached.

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
        """Number of requests that follow the run through the store."""
        self.watchers: list[Watcher] = []
        self.n_users = 0
        """Number of blocks that use this session. It is dropped with the last one."""

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
