"""Protocol for the storage of files and batches, which is in memory or a database."""

from collections.abc import Callable
from typing import Protocol

from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.batches.model import Batch, LineResult, StoredFile

Change = Callable[[Batch], Batch]


class BatchStore(Protocol):
    """Storage of files and batches. All methods raise StoreUnavailable if it cannot be reached."""

    owner: str
    """Id of this replica."""

    async def add_file(self, file: StoredFile, body: bytes) -> None:
        """Store a file, unless there is one with this id."""
        ...

    async def file(self, id: str) -> StoredFile | None:
        """Return the file with this id, or None if it is not kept any more."""
        ...

    async def content(self, id: str) -> bytes | None:
        """Return the content of a file, or None if it is not kept any more."""
        ...

    async def piece(self, id: str, begin: int, n_bytes: int) -> bytes | None:
        """Return up to `n_bytes` of a file's content from `begin` on, or None if it is not kept any more."""
        ...

    async def files(self, caller: Caller, purpose: str | None = None) -> list[StoredFile]:
        """Return the files that `caller` may see, newest first."""
        ...

    async def used_bytes(self, account: Account) -> int:
        """Return the total size of the files of the account's team, or if it has no team, of the account."""
        ...

    async def delete_file(self, id: str) -> None: ...

    async def add(self, batch: Batch) -> None: ...

    async def get(self, id: str) -> Batch | None:
        """Return the batch with this id, or None if it is not kept any more."""
        ...

    async def batches(self, caller: Caller) -> list[Batch]:
        """Return the batches that `caller` may see, newest first."""
        ...

    async def count_open(self, account: Account) -> int:
        """Return the number of open batches of the account's team, or if it has no team, of the account."""
        ...

    async def change(self, id: str, change: Change) -> Batch:
        """Change a batch atomically and return it. If `change` raises, nothing is changed.

        Raises:
            KeyError: there is no such batch.
        """
        ...

    async def take(self) -> list[Batch]:
        """Take over open batches of replicas that have ended. Return them."""
        ...

    async def put_result(self, batch_id: str, result: LineResult) -> None:
        """Store the result of a line, unless it has one."""
        ...

    async def counts(self, batch_id: str) -> tuple[int, int]:
        """Return the numbers of completed and of failed lines of an open batch."""
        ...

    async def numbers(self, batch_id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""
        ...

    async def results(self, batch_id: str) -> list[LineResult]:
        """Return all results, in the order of the lines."""
        ...

    async def drop_results(self, batch_id: str) -> None:
        """Delete the results, after they were written to files."""
        ...


def newest_first(items: list[StoredFile] | list[Batch]) -> None:
    items.sort(key=lambda each: (each.made_us, each.id), reverse=True)
