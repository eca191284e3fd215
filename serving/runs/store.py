"""Where records of runs are kept. A small port: a database can take its place."""

from typing import Protocol

from conductor.run.record import Record


class RecordStore(Protocol):
    """Keeps records."""

    async def put(self, record: Record) -> None:
        """Keep `record`, in place of an earlier one of the same id."""
        ...

    async def get(self, id: str) -> Record | None:
        """The record of that id, if it is still kept."""
        ...

    async def newest(self, limit: int) -> list[Record]:
        """Up to `limit` records, the run that began last first."""
        ...
