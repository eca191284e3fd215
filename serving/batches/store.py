"""Protocol for the storage of files and batches. It is implemented in memory and in a database."""

from collections.abc import Callable
from typing import Protocol

from conductor.run.record import Account
from serving.accounts.caller import Caller
from serving.batches.model import Batch, LineResult, StoredFile

Change = Callable[[Batch], Batch]


class BatchStore(Protocol):
    """Storage of files and batches. Every method raises `StoreUnavailable` if the storage is unreachable."""

    owner: str
    """Id of this replica."""

    async def add_file(self, file: StoredFile, body: bytes) -> None:
        """Store a file, unless a file with this id is already stored."""
        ...

    async def file(self, id: str) -> StoredFile | None: ...

    async def content(self, id: str) -> bytes | None: ...

    async def piece(self, id: str, begin: int, n_bytes: int) -> bytes | None:
        """Return up to `n_bytes` of a file's content from `begin`, or None if the file is not stored."""
        ...

    async def files(
        self,
        caller: Caller,
        limit: int,
        after: StoredFile | None = None,
        purpose: str | None = None,
        *,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        """Return up to `limit` files, of one `purpose` if it is set, that `caller` may see, in order after
        `after`.
        """
        ...

    async def file_usage(self, account: Account) -> tuple[int, int]:
        """Return the number and total bytes of the files of an account's team, or of its key without a team."""
        ...

    async def delete_file(self, id: str) -> None: ...

    async def add(self, batch: Batch) -> None: ...

    async def get(self, id: str) -> Batch | None: ...

    async def batches(self, caller: Caller, limit: int, after: Batch | None = None) -> list[Batch]:
        """Return up to `limit` batches that `caller` may see, newest first, after `after`."""
        ...

    async def count_open(self, account: Account) -> int:
        """Return the number of open batches of an account's team, or of its key without a team."""
        ...

    async def change(self, id: str, change: Change) -> Batch:
        """Replace a batch atomically by the result of `change`, and return it. An error in `change` leaves it
        unchanged. Raise KeyError if there is no such batch.
        """
        ...

    async def take(self) -> list[Batch]:
        """Take over unfinished batches of replicas that have ended. Return these batches."""
        ...

    async def put_result(self, batch_id: str, result: LineResult) -> None:
        """Store the result of a line, unless the line already has a result."""
        ...

    async def counts(self, batch_id: str) -> tuple[int, int]:
        """Return the number of successful and the number of failed lines of a batch that has not ended."""
        ...

    async def numbers(self, batch_id: str) -> set[int]:
        """Return the numbers of the lines that have a result."""
        ...

    async def write_results(self, batch_id: str, file: StoredFile, *, errors: bool) -> bool:
        """Store a file with the successful results of a batch, or with `errors`, the others, in the order of
        their lines. Its size replaces `file.n_bytes`. Return False if there are none.

        A file with this id that is already stored stays as it is.
        """
        ...

    async def result_bytes(self, batch_id: str) -> int:
        """Return the total bytes of the results of a batch that has not ended."""
        ...

    async def drop_results(self, batch_id: str) -> None:
        """Delete the results of a batch. Call it after they were written to files."""
        ...
