"""Files and batches in the memory of one replica."""

from dataclasses import replace
from typing import TypeVar

from conductor.run.record import Account
from serving.accounts.caller import Caller, same_owner
from serving.batches.model import Batch, LineResult, StoredFile
from serving.batches.store import Change
from serving.database.clock import now_us

Item = TypeVar("Item", StoredFile, Batch)


class MemoryBatchStore:
    """`BatchStore` in the memory of one replica. Its content is lost when the replica ends."""

    owner = ""

    def __init__(self) -> None:
        self._files = dict[str, tuple[StoredFile, bytes]]()
        self._batches = dict[str, Batch]()
        self._results = dict[str, dict[int, LineResult]]()

    async def add_file(self, file: StoredFile, body: bytes) -> None:
        self._drop_old()
        self._files.setdefault(file.id, (file, body))

    async def file(self, id: str) -> StoredFile | None:
        self._drop_old()
        return self._files[id][0] if id in self._files else None

    async def content(self, id: str) -> bytes | None:
        self._drop_old()
        return self._files[id][1] if id in self._files else None

    async def piece(self, id: str, begin: int, n_bytes: int) -> bytes | None:
        content = await self.content(id)
        return None if content is None else content[begin : begin + n_bytes]

    async def files(
        self,
        caller: Caller,
        limit: int,
        after: StoredFile | None = None,
        purpose: str | None = None,
        *,
        newest_first: bool = True,
    ) -> list[StoredFile]:
        self._drop_old()
        visible = [
            file
            for file, _ in self._files.values()
            if caller.sees(file.account) and purpose in (None, file.purpose)
        ]
        return _first(visible, limit, after, newest_first=newest_first)

    async def file_usage(self, account: Account) -> tuple[int, int]:
        self._drop_old()
        sizes = [file.n_bytes for file, _ in self._files.values() if same_owner(file.account, account)]
        return len(sizes), sum(sizes)

    async def delete_file(self, id: str) -> None:
        self._files.pop(id, None)

    async def add(self, batch: Batch) -> None:
        self._batches[batch.id] = batch

    async def get(self, id: str) -> Batch | None:
        self._drop_old()
        return self._batches.get(id)

    async def batches(self, caller: Caller, limit: int, after: Batch | None = None) -> list[Batch]:
        self._drop_old()
        visible = [batch for batch in self._batches.values() if caller.sees(batch.account)]
        return _first(visible, limit, after)

    async def count_open(self, account: Account) -> int:
        return sum(each.is_open and same_owner(each.account, account) for each in self._batches.values())

    async def change(self, id: str, change: Change) -> Batch:
        self._batches[id] = new_batch = change(self._batches[id])
        return new_batch

    async def take(self) -> list[Batch]:
        """Return nothing, because there is no other replica."""
        return []

    async def put_result(self, batch_id: str, result: LineResult) -> None:
        self._results.setdefault(batch_id, {}).setdefault(result.number, result)

    async def counts(self, batch_id: str) -> tuple[int, int]:
        results = self._results.get(batch_id, {}).values()
        n_failed = sum(result.is_error for result in results)
        return len(results) - n_failed, n_failed

    async def numbers(self, batch_id: str) -> set[int]:
        return set(self._results.get(batch_id, {}))

    async def write_results(self, batch_id: str, file: StoredFile, *, errors: bool) -> bool:
        results = sorted(self._results.get(batch_id, {}).items())
        body = b"".join(result.body + b"\n" for _, result in results if result.is_error == errors)
        if body:
            await self.add_file(replace(file, n_bytes=len(body)), body)
        return bool(body)

    async def result_bytes(self, batch_id: str) -> int:
        return sum(len(result.body) for result in self._results.get(batch_id, {}).values())

    async def drop_results(self, batch_id: str) -> None:
        self._results.pop(batch_id, None)

    def _drop_old(self) -> None:
        at_us = now_us()
        self._files = {id: each for id, each in self._files.items() if each[0].drop_us > at_us}
        self._batches = {
            id: each for id, each in self._batches.items() if each.is_open or each.drop_us > at_us
        }


def _first(items: list[Item], limit: int, after: Item | None, *, newest_first: bool = True) -> list[Item]:
    """Return the first items by time after `after`."""
    items.sort(key=lambda each: (each.made_us, each.id), reverse=newest_first)
    begin = next((n for n, each in enumerate(items, 1) if after is not None and each.id == after.id), 0)
    return items[begin : begin + limit]
