"""Where records of runs are kept. A small port: a database can take its place."""

from typing import Protocol

from conductor.run.record import RunRecords
from serving.accounts.caller import Caller


class RecordStore(Protocol):
    """Keeps records."""

    async def put(self, records: RunRecords) -> None:
        """Keep a run, in place of an earlier one of the same id."""
        ...

    async def get(self, id: str) -> RunRecords | None:
        """The run of that id, if it is still kept."""
        ...

    async def newest(self, limit: int, caller: Caller) -> list[RunRecords]:
        """Up to `limit` runs that `caller` may see, the one that began last first."""
        ...
