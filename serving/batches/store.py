"""Where files and batches are kept: a small port. Memory, or a database."""

from collections.abc import Callable
from typing import Protocol

from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.batches.model import Batch, File, LineResult

Change = Callable[[Batch], Batch]


class BatchStore(Protocol):
    """Keeps files and batches. All of it raises StoreUnavailable while the store is away."""

    owner: str
    """This replica."""

    async def add_file(self, file: File, body: bytes) -> None:
        """Keep a file; nothing where there is one of its id."""
        ...

    async def file(self, id: str) -> File | None:
        """The file of that id, if it is still kept."""
        ...

    async def content(self, id: str) -> bytes | None:
        """What it holds."""
        ...

    async def piece(self, id: str, begin: int, n_bytes: int) -> bytes | None:
        """So many bytes of it at most."""
        ...

    async def files(self, caller: Caller, purpose: str | None = None) -> list[File]:
        """Those that `caller` may see, the newest first."""
        ...

    async def used_bytes(self, account: Account) -> int:
        """How much room the files of the account's team take; without a team, its own."""
        ...

    async def delete_file(self, id: str) -> None:
        """Forget it."""
        ...

    async def add(self, batch: Batch) -> None:
        """Keep a new batch."""
        ...

    async def get(self, id: str) -> Batch | None:
        """The batch of that id, if it is still kept."""
        ...

    async def batches(self, caller: Caller) -> list[Batch]:
        """Those that `caller` may see, the newest first."""
        ...

    async def count_open(self, account: Account) -> int:
        """How many open batches the account's team has; without a team, it has itself."""
        ...

    async def change(self, id: str, change: Change) -> Batch:
        """Change a batch while nobody else does; gives what it is now. What `change` raises passes, and nothing
        is changed then. KeyError: there is none.
        """
        ...

    async def take(self) -> list[Batch]:
        """Open batches of replicas that have ended, which are this replica's from now on."""
        ...

    async def put_result(self, batch_id: str, result: LineResult) -> None:
        """Keep what became of a line; an earlier result of it stands."""
        ...

    async def counts(self, batch_id: str) -> tuple[int, int]:
        """How many lines have completed, and failed, of an open batch."""
        ...

    async def numbers(self, batch_id: str) -> set[int]:
        """The lines that have a result."""
        ...

    async def results(self, batch_id: str) -> list[LineResult]:
        """All of them, in the order of the lines."""
        ...

    async def drop_results(self, batch_id: str) -> None:
        """They are in files now."""
        ...


def newest_first(items: list[File] | list[Batch]) -> None:
    """Sort."""
    items.sort(key=lambda each: (each.made_us, each.id), reverse=True)
