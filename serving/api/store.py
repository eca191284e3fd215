"""Where records of runs are kept. A small port: a database can take its place."""

from collections import OrderedDict
from typing import Protocol

from conductor.record import Record


class RecordStore(Protocol):
    """Keeps records, newest first."""

    async def put(self, record: Record) -> None:
        """Keep `record`, in place of an earlier one of the same id."""
        ...

    async def get(self, id: str) -> Record | None:
        """The record of that id, if it is still kept."""
        ...

    async def newest(self, limit: int) -> list[Record]:
        """Up to `limit` records, the newest run first."""
        ...


class MemoryStore:
    """The newest runs of this replica, in its memory; gone with it."""

    def __init__(self, room: int) -> None:
        self._room, self._records = room, OrderedDict[str, Record]()

    async def put(self, record: Record) -> None:
        """See `RecordStore.put`."""
        self._records[record.id] = record
        while len(self._records) > self._room:
            self._records.popitem(last=False)

    async def get(self, id: str) -> Record | None:
        """See `RecordStore.get`."""
        return self._records.get(id)

    async def newest(self, limit: int) -> list[Record]:
        """See `RecordStore.newest`."""
        return list(reversed(self._records.values()))[:limit]
